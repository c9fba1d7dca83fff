"""Downloads that a server cannot redirect to services of this machine."""

import contextlib
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPMessage
from typing import IO, Any, cast

from vit_tf.data.files import require_other_machine


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections of `urllib`, except to this machine."""

    def redirect_request(
        self,
        request: urllib.request.Request,
        file: IO[bytes],
        code: int,
        message: str,
        headers: HTTPMessage,
        url: str,
    ) -> urllib.request.Request | None:
        """The request of a redirection; an error for one to this machine."""
        require_other_machine(url, request.full_url)
        return super().redirect_request(request, file, code, message, headers, url)


@contextlib.contextmanager
def from_other_machines() -> Iterator[None]:
    """Within a `with`, `urllib` and Hugging Face's client follow no redirection to this machine."""
    # It has no public name, and is None until a program installs an opener.
    opener = cast(Any, urllib.request)._opener
    urllib.request.install_opener(urllib.request.build_opener(_Redirects))
    try:
        with _hub_from_other_machines():
            yield
    finally:
        urllib.request.install_opener(opener)


@contextlib.contextmanager
def _hub_from_other_machines() -> Iterator[None]:
    """The same for Hugging Face's client alone; nothing where it is not installed."""
    try:
        import huggingface_hub
        from huggingface_hub.utils import _http
    except ImportError:
        yield
        return
    endpoint = huggingface_hub.constants.ENDPOINT
    hub = cast(Any, huggingface_hub)  # a type checker sees only one of both versions

    def check(request: Any) -> None:
        require_other_machine(str(request.url), endpoint)

    if not hasattr(hub, "configure_http_backend"):  # from 1.0 on it uses httpx
        hooks = hub.get_session().event_hooks
        hub.get_session().event_hooks = hooks | {"request": [*hooks["request"], check]}
        try:
            yield
        finally:
            hub.get_session().event_hooks = hooks
        return
    # There is no public way to read the factory that a program has set, only one to set it.
    factory = _http._GLOBAL_BACKEND_FACTORY

    def make_session() -> Any:
        session = factory()
        session.send = _checked(session.send, check)
        return session

    hub.configure_http_backend(make_session)
    try:
        yield
    finally:
        hub.configure_http_backend(factory)


def _checked(send: Callable, check: Callable[[Any], None]) -> Callable:
    """The `send` of a session, which is called for each redirection too, after a check."""

    def send_checked(request: object, **options: object) -> object:
        check(request)
        return send(request, **options)

    return send_checked
