import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from common.files.task_folder import ImageConfig
from fairlead.wire.job import script
from runner.errors import CannotStart
from runner.processes.launch import Launch, prepare, read_image_config
from tests.unit.runner.harness import a_job

INHERITED = {"PATH": "/usr/bin:/bin", "HOME": "/root"}


def launch(*commands: str, image: ImageConfig | None = None, **options: Any) -> Launch:
    fields = {k: options.pop(k) for k in tuple(options) if k not in ("shells", "root")}
    request = a_job(*commands, **fields)
    return prepare(request, image or ImageConfig(), inherited=INHERITED, **options)


def run_script(*commands: str, shell: str = "/bin/sh") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shell, "-c", script(commands)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
class TestScript:
    def test_folder_and_variables_carry_over(self, shell: str) -> None:
        done = run_script("cd /usr", "export A=1; B=2", 'echo "$PWD $A $B"', shell=shell)
        assert done.stdout == "/usr 1 2\n"

    def test_a_failing_command_ends_it_with_its_code(self, shell: str) -> None:
        done = run_script("echo one", "(exit 42)", "echo three", shell=shell)
        assert (done.stdout, done.returncode) == ("one\n", 42)

    def test_a_command_may_have_lines_comments_and_heredocs(self, shell: str) -> None:
        done = run_script(
            "if true; then\n  echo a\nfi # why",
            "# only a comment",
            "",
            "cat <<END\nb\nEND",
            "echo c \\",
            "sleep 0 &",
            shell=shell,
        )
        assert (done.stdout, done.returncode) == ("a\nb\nc\n", 0)

    def test_set_e_of_the_user_works(self, shell: str) -> None:
        done = run_script("set -e", "false; echo unreachable", "echo no", shell=shell)
        assert (done.stdout, done.returncode) == ("", 1)

    def test_a_handled_failure_is_none(self, shell: str) -> None:
        assert run_script("false || true", "echo on", shell=shell).stdout == "on\n"


def test_commands_run_in_the_first_shell_there_is(tmp_path: Path) -> None:
    shells = (str(tmp_path / "bash"), "/bin/sh")
    assert launch("true", shells=shells).argv == ("/bin/sh", "-c", "true")


def test_a_shell_is_found_in_the_path_of_the_job() -> None:
    assert launch("true", shell="sh").argv[0] in ("/usr/bin/sh", "/bin/sh")


def test_without_a_shell_the_message_suggests_an_entrypoint() -> None:
    with pytest.raises(CannotStart, match=r"no shell .* use `entrypoint: \[program"):
        launch("true", shells=())


def test_an_unknown_shell_is_named() -> None:
    with pytest.raises(CannotStart, match="'zzsh' is not in the image"):
        launch("true", shell="zzsh")


def test_an_entrypoint_is_looked_up_in_the_env_of_the_job(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("")
    program.chmod(0o755)
    found = launch(entrypoint=["tool", "--x"], env={"PATH": str(tmp_path)})
    assert found.argv == (str(program), "--x")


def test_a_program_that_is_not_there_is_named_with_the_path() -> None:
    with pytest.raises(CannotStart, match=r"'nothere' is not an executable .*PATH=/usr/bin:/bin"):
        launch(entrypoint=["nothere"])


def test_the_image_itself_runs_without_commands_and_entrypoint() -> None:
    image = ImageConfig(entrypoint=("/bin/echo",), cmd=("hi",))
    assert launch(image=image).argv == ("/bin/echo", "hi")


def test_nothing_to_run_says_what_to_give() -> None:
    with pytest.raises(CannotStart, match="nothing to run"):
        launch()


def test_a_missing_working_dir_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert launch("true", working_dir=str(folder)).working_dir == str(folder)
    assert folder.is_dir()


def test_a_made_working_dir_belongs_to_the_user_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    launch("true", working_dir=str(folder), user="4321:8765")
    assert [(p.stat().st_uid, p.stat().st_gid) for p in (folder, folder.parent)] == [
        (4321, 8765),
        (4321, 8765),
    ]
    assert tmp_path.stat().st_uid == os.getuid()


@pytest.mark.parametrize(("folder", "words"), [("relative", "absolute"), ("/etc/passwd", "folder")])
def test_an_impossible_working_dir_is_named(folder: str, words: str) -> None:
    with pytest.raises(CannotStart, match=f"working_dir '{folder}'.*{words}"):
        launch("true", working_dir=folder)


def test_the_images_user_and_folder_apply_without_others(tmp_path: Path) -> None:
    image = ImageConfig(user="1234", working_dir=str(tmp_path))
    found = launch("true", image=image)
    assert found.identity is not None
    assert (found.identity.uid, found.working_dir) == (1234, str(tmp_path))


def test_the_image_config_may_be_missing_empty_or_from_a_newer_shim(tmp_path: Path) -> None:
    path = tmp_path / "image.json"
    missing = read_image_config(tmp_path)
    path.write_text("")
    empty = read_image_config(tmp_path)
    path.write_text('{"cmd": ["x"], "new": 1}')
    newer = read_image_config(tmp_path)
    assert (missing, empty, newer) == (ImageConfig(), ImageConfig(), ImageConfig(cmd=("x",)))


def test_a_damaged_image_config_is_an_error_for_the_user(tmp_path: Path) -> None:
    (tmp_path / "image.json").write_text("{")
    with pytest.raises(CannotStart, match="image's configuration"):
        read_image_config(tmp_path)
