"""Build the image of deploy/image and run it, on machines with buildah: `make image`."""
