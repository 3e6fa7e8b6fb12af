"""Builds the parts of a release into dist/ and tries them from clean environments: `make release`."""
