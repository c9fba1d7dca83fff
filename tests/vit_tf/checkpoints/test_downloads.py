"""Servers of this process that redirect downloads to another one of this machine."""

import http.server
import threading
import urllib.request

import pytest

from vit_tf.checkpoints.downloads import from_other_machines
from vit_tf.checkpoints.folders import snapshot
from vit_tf.data.files import require_other_machine


@pytest.fixture
def servers():
    """The address of a server that redirects to another one, and the requests that reach that."""
    requests, running = [], []

    def serve(answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            do_GET = do_HEAD = answer

            def log_message(self, *_):
                """Nothing is printed."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    def answer(handler):
        requests.append(handler.path)
        handler.send_response(200)
        handler.end_headers()

    def redirect(handler):
        handler.send_response(302)
        handler.send_header("Location", f"{private}/secret")
        handler.end_headers()

    private = serve(answer)
    yield serve(redirect), requests
    for server in running:
        server.shutdown()
        server.server_close()


def test_urllib_is_not_redirected_to_this_machine(servers):
    address, requests = servers
    with pytest.raises(ValueError, match="to be on another machine"), from_other_machines():
        urllib.request.urlopen(f"{address}/model.npz", timeout=10)
    assert not requests
    urllib.request.urlopen(f"{address}/model.npz", timeout=10).close()  # as before, outside of it
    assert requests == ["/secret"]


def test_the_hub_does_not_redirect_to_this_machine(servers, monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    address, requests = servers
    monkeypatch.setattr(hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"to be downloadable.*to be on another machine"):
        snapshot("hf://owner/name")
    assert not requests


@pytest.mark.parametrize(
    "url, is_refused",
    [
        ("http://localhost:8080/a", True),
        ("http://127.9.9.9/a", True),
        ("http://[::1]/a", True),
        ("http://[::ffff:127.0.0.1]/a", True),
        ("http://0.0.0.0/a", True),
        ("http://169.254.169.254/latest/meta-data", True),
        ("http://127.0.0.1:8000/other", False),
        ("http://192.0.2.1/a", False),
    ],
)
def test_addresses_of_this_machine(url, is_refused):
    if not is_refused:
        require_other_machine(url, "http://127.0.0.1:8000/a")
        return
    with pytest.raises(ValueError, match="on this machine"):
        require_other_machine(url, "https://example.org/a")
