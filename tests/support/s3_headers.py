"""Ask moto how it encrypted an object."""

import urllib.request

from penstock.objectstore.config import S3Config

SSE = "x-amz-server-side-encryption"
SSE_HEADERS = (SSE, f"{SSE}-aws-kms-key-id", f"{SSE}-bucket-key-enabled")


def told_headers(config: S3Config, key: str) -> dict[str, str]:
    """Return the headers of a HEAD response, by lower-case name."""
    credential = "Credential=local/20260101/us-east-1/s3/aws4_request"
    request = urllib.request.Request(
        f"{config.endpoint}/{config.bucket}/{key}",
        method="HEAD",
        headers={
            "Authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0"
        },
    )
    with urllib.request.urlopen(request) as response:
        return {name.lower(): value for name, value in response.headers.items()}
