"""Commands remember controllers and tokens; a token never goes to another controller."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.errors import SettingsError
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.cli.conftest import Fairlead, Result

NOWHERE = "http://127.0.0.1:1"


class Home:
    """A user without settings in the environment."""

    def __init__(self, start: Fairlead, folder: Path, url: str) -> None:
        self._start = start
        self.folder = folder
        self.url = url
        self.file = folder / "fairlead" / "controllers.json"
        self.token_file = folder / "token"
        self.token_file.write_text(f"{USER_TOKEN}\n")

    async def __call__(self, *arguments: str, **env: str) -> Result:
        nothing = {"FAIRLEAD_URL": "", "FAIRLEAD_TOKEN": "", "XDG_CONFIG_HOME": str(self.folder)}
        return await (await self._start(*arguments, **(nothing | env))).ended()

    async def login(self, *arguments: str) -> Result:
        return await self("login", self.url, "--token-file", str(self.token_file), *arguments)


@pytest.fixture
def home(start: Fairlead, tmp_path: Path, environment: dict[str, str]) -> Home:
    return Home(start, tmp_path, environment["FAIRLEAD_URL"])


async def test_a_login_is_remembered_until_the_logout(home: Home) -> None:
    logged_in = await home.login()
    assert logged_in.out.decode() == f"logged in to 127.0.0.1 ({home.url}) as ada (role user)\n"
    assert stat.S_IMODE(home.file.stat().st_mode) == 0o600
    assert (await home("whoami")).out.decode() == f"ada (role user) at {home.url}\n"
    assert (await home("ps")).status == 0
    assert (await home("logout")).out == b"forgot 127.0.0.1\n"
    assert USER_TOKEN not in home.file.read_text()
    assert (await home("logout")).status == 1


@pytest.mark.parametrize("url", ["ftp://x", "h", "http://[::1", "http://h:99999"])
async def test_a_string_that_is_no_url_is_told_in_a_sentence(home: Home, url: str) -> None:
    refused = await home("login", url, "--token-file", str(home.token_file))
    assert refused.status == 1
    assert f"{url!r} is not a URL like http://127.0.0.1:8700" in refused.err


async def test_a_password_in_an_address_is_refused_and_not_shown(home: Home) -> None:
    refused = await home("login", "http://ada:hidden@h", "--token-file", str(home.token_file))
    assert (refused.status, "holds a user or a password" in refused.err) == (1, True)
    assert "hidden" not in refused.err


async def test_a_wrong_token_is_not_saved(home: Home) -> None:
    home.token_file.write_text("fl_wrong")
    refused = await home.login()
    assert (refused.status, "not known to this controller" in refused.err) == (1, True)
    assert not home.file.exists()


async def test_several_controllers_are_told_apart(home: Home) -> None:
    await home.login("--name", "ours")
    await home.login("--name", "theirs")
    listed = json.loads((await home("use", "--json")).out)["controllers"]
    assert [(one["name"], one["current"]) for one in listed] == [("ours", False), ("theirs", True)]
    assert (await home("use", "ours")).status == 0
    assert (await home("logout", "theirs")).status == 0
    assert (await home("ps")).status == 0
    unknown = await home("ps", FAIRLEAD_CONTROLLER="theirs")
    assert (unknown.status, "(now: ours)" in unknown.err) == (1, True)


async def test_a_login_to_several_addresses_asks_each(home: Home) -> None:
    token = ["--token-file", str(home.token_file)]
    logged_in = await home("login", f"{NOWHERE},{home.url}/", *token)
    assert logged_in.status == 0
    assert f"{NOWHERE} is saved, but it is not a controller now: Connection" in logged_in.err
    saved = json.loads(home.file.read_text())["controllers"]["127.0.0.1"]
    assert saved["url"] == f"{NOWHERE},{home.url}"
    asked = await home("whoami")
    assert asked.out.decode() == f"ada (role user) at {home.url}\n"
    assert f"{NOWHERE} is passed over: Connection refused; {home.url} answers" in asked.err
    nobody = await home("login", f"{NOWHERE},http://127.0.0.1:2", *token)
    assert (nobody.status, "cannot reach the controller" in nobody.err) == (1, True)
    wrong = await home("login", f"{home.url},c2", *token)
    assert "fairlead: URL: 'c2' is not a URL" in wrong.err


async def test_an_address_of_another_database_is_refused(home: Home) -> None:
    home.token_file.write_text("fl_wrong")
    refused = await home("login", f"{NOWHERE},{home.url}", "--token-file", str(home.token_file))
    assert (refused.status, home.file.exists()) == (1, False)
    assert f"{home.url} does not know the token" in refused.err
    assert "give only URLs of controllers that share a database" in refused.err


async def test_the_environment_alone_decides_where_it_says_anything(home: Home) -> None:
    await home.login()
    admin = await home("whoami", FAIRLEAD_URL=home.url, FAIRLEAD_TOKEN=ADMIN_TOKEN)
    assert admin.out.startswith(b"admin ")
    same_url = await home("whoami", FAIRLEAD_URL=home.url)
    assert same_url.out.startswith(b"ada ")
    both = await home("whoami", FAIRLEAD_CONTROLLER="x", FAIRLEAD_TOKEN=ADMIN_TOKEN)
    assert (both.status, "unset one of them" in both.err) == (1, True)


async def test_a_token_of_the_environment_does_not_go_to_a_saved_controller(home: Home) -> None:
    saved = {"current": "other", "controllers": {"other": {"url": NOWHERE, "token": "fl_saved"}}}
    home.file.parent.mkdir()
    home.file.write_text(json.dumps(saved))
    asked = await home("whoami", FAIRLEAD_TOKEN=ADMIN_TOKEN)
    assert "http://127.0.0.1:8700" in asked.err
    assert NOWHERE not in asked.err


async def test_without_a_terminal_the_token_must_come_from_somewhere(home: Home) -> None:
    refused = await home("login", home.url)
    assert (refused.status, "--token-file" in refused.err) == (2, True)


async def test_a_hyphen_stands_for_standard_input(home: Home) -> None:
    refused = await home("login", home.url, "--token-file", "-")
    assert (refused.status, "the token is empty" in refused.err) == (2, True)


async def test_a_damaged_file_is_named(home: Home) -> None:
    home.file.parent.mkdir()
    home.file.write_text("{")
    refused = await home("ps")
    assert (refused.status, str(home.file) in refused.err) == (1, True)


async def test_a_token_may_expire(home: Home) -> None:
    await home.login()
    made = json.loads((await home("token", "add", "--expires", "8h", "--json")).out)
    assert made["expires_at"] > made["created_at"]
    assert made["expires_at"] in (await home("token", "list")).out.decode()
    wrong = await home("token", "add", "--expires", "soon")
    assert (wrong.status, wrong.err) == (
        2,
        "fairlead: --expires: 'soon' is not a duration between 0 and 10 years; write 8h or 30d\n",
    )


async def test_the_dashboards_link_is_printed_for_a_browser_elsewhere(home: Home) -> None:
    await home.login()

    printed = await home("dashboard", "--print")

    assert printed.out.decode().startswith(f"{home.url}/dashboard/enter#")
    assert "works once" in printed.err


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with pytest.raises(SettingsError, match="set HOME"):
        settings.path()
    monkeypatch.setenv("XDG_CONFIG_HOME", "~conf")
    assert settings.path() == "~conf/fairlead/controllers.json"
