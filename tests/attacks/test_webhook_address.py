"""Attacks on the address of a web hook, which is a secret: what is said about it may not contain any of it."""

import pytest
from webhook_server import serve_webhook

from aboard.engine.monitoring.receivers import Undelivered, Webhook

USER, PASSWORD = "releasebot", "hunter2%2Fq7zr9"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1", f"127.0.0.1:1/{PASSWORD}", "a" * 70 + ".invalid"])
@pytest.mark.parametrize("login", [f"{USER}:{PASSWORD}@", f"{PASSWORD}@", f"a@{PASSWORD}:@", ""])
def test_no_error_about_a_web_hook_contains_its_password(host: str, login: str) -> None:
    """An error of http.client quotes what it was given."""
    with pytest.raises(Undelivered) as raised:
        Webhook(f"http://{login}{host}", "json").probe()
    assert str(raised.value)
    assert not [part for part in (PASSWORD, "q7zr9", USER) if part in str(raised.value)]


def test_a_password_in_an_address_is_sent_as_a_header() -> None:
    """Where it works: other programs send the user and password of an address as basic authentication."""
    with serve_webhook() as server:
        address = server.address.replace("http://", f"http://{USER}:{PASSWORD}@")
        Webhook(address, "json").probe()
        assert server.logins == ["Basic cmVsZWFzZWJvdDpodW50ZXIyL3E3enI5"]
        server.answer = 401
        with pytest.raises(Undelivered, match="answered with status 401"):
            Webhook(address, "json").send({"id": "a", "text": ""})
