"""What is fast, and against which limit: `make bench`. Results with machine and date are in docs/performance.md."""
