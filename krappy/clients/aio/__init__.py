"""The async client: anyio around the shared code."""
