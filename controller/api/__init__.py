"""The controller over gRPC. `client`, `follower`, `messages` and `stream_metadata` are the public half; `server` is not."""
