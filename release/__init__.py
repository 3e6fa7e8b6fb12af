"""What a release consists of, built into dist/ and tried from clean environments: `make release`."""
