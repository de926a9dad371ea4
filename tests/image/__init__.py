"""Build the image of deploy/image and run it, on machines that have buildah: `make image`."""
