"""One running app for all tests of a worker."""

import importlib.util
from collections.abc import Iterator

import pytest
from app_makers import Server, start_server, weights


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("gradio is not installed: pip install 'mspcaps[app]'")
    folder = tmp_path_factory.mktemp("app")
    files = weights(folder / "grey.safetensors"), weights(folder / "quick.safetensors", "mspcaps_t_scale8")
    running = start_server(folder, *files)
    yield running
    running.stop()
