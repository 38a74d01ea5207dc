"""A coding agent from npm, unmodified and without an account, edits a file through a model that writes given calls.

    npm install @openai/codex @anthropic-ai/claude-code
    HEARTH=target/release/hearth SCRIPTED_MODEL=<folder with scripted_model.py> \\
        python check_coding_agent.py codex node_modules/.bin/codex
    (the same) python check_coding_agent.py claude node_modules/.bin/claude

Not part of CI: the agents are large (300 MB each), and change their tools from version to version. It passed with codex
0.171.0 and Claude Code 2.1.197.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, os.environ["SCRIPTED_MODEL"])
import scripted_model  # noqa: E402

# After each number of results of calls, the prompt has another length, where another text begins.
STEP = 1000
TEMPLATE = (
    "{# <tool_call> #}{% if tools %}{% endif %}a{% for message in messages %}{% if message.role == 'tool' %}"
    + "b" * STEP
    + "{% endif %}{% endfor %}"
)


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def codex(binary, base, folder, file):
    home = folder / "codex"
    home.mkdir()
    (home / "config.toml").write_text(
        'model = "any"\nmodel_provider = "hearth"\n[model_providers.hearth]\nname = "hearth"\n'
        f'base_url = "{base}/v1"\nwire_api = "responses"\nenv_key = "HEARTH_KEY"\n'
        "request_max_retries = 0\nstream_max_retries = 0\n"
    )
    calls = [call("exec_command", cmd=f"sed -i s/cat/dog/ {file}")]
    command = [binary, "exec", "--skip-git-repo-check", "-s", "danger-full-access", "Replace the cat."]
    return calls, command, {"CODEX_HOME": str(home), "HEARTH_KEY": "none"}


def claude(binary, base, folder, file):
    read = call("Read", file_path=str(file))
    edit = call("Edit", file_path=str(file), old_string="cat", new_string="dog")
    command = [binary, "-p", "Replace the cat.", "--allowedTools", "Read,Edit"]
    return [read, edit], command, {"ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": "none"}


def wait_for(base, server):
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{base}/ready", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            assert server.poll() is None, "the server ended"
            time.sleep(0.5)
    raise AssertionError("the server is not ready")


def main(agent, binary):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        file = work / "animals.txt"
        file.write_text("one cat\n")
        binary = str(Path(binary).absolute())
        calls, command, settings = {"codex": codex, "claude": claude}[agent](binary, base, folder, file)
        scripts = {1 + STEP * at: text for at, text in enumerate([*calls, "It is a dog now."])}
        scripted_model.make(str(folder / "model"), scripts, TEMPLATE)
        hearth = [os.environ["HEARTH"], "serve", "--model", str(folder / "model"), "--port", str(port), "--alias", "*"]
        with open(folder / "server.log", "w") as log:
            server = subprocess.Popen([*hearth, "--device", "cpu"], stdout=log, stderr=log)
        try:
            wait_for(base, server)
            environment = {**os.environ, **settings, "HOME": str(folder)}
            done = subprocess.run(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=180)
            shown = done.stdout.decode() + done.stderr.decode() + (folder / "server.log").read_text()
            assert file.read_text() == "one dog\n", shown
            assert "It is a dog now." in done.stdout.decode(), shown
        finally:
            server.kill()
            server.wait()
    print("ok", agent)


if __name__ == "__main__":
    main(*sys.argv[1:])
