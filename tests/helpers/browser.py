"""A headless Chromium that tests drive."""

import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
]
PATIENCE = 60


class Browser:
    """One page of a headless Chromium, spoken to in the DevTools protocol over two pipes."""

    def __init__(self, profile):
        theirs_in, self.write_end = os.pipe()
        self.read_end, theirs_out = os.pipe()
        # Chromium reads its file descriptor 3 and writes to 4, whatever ours are called.
        pipes = f'exec "$0" "$@" 3</dev/fd/{theirs_in} 4>/dev/fd/{theirs_out}'
        self.process = subprocess.Popen(
            ["sh", "-c", pipes, CHROMIUM, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.count, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """The result of a command."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda message: message.get("id") == self.count)
        assert "error" not in answer, answer
        return answer["result"]

    def _wait(self, wanted):
        """The next message that is wanted; the others are kept as events."""
        deadline = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self.buffer:
                ready = select.select([self.read_end], [], [], deadline - time.monotonic())[0]
                assert ready, "chromium does not answer"
                part = os.read(self.read_end, 1 << 16)
                assert part, "chromium has gone"
                self.buffer += part
            line, self.buffer = self.buffer.split(b"\0", 1)
            message = json.loads(line)
            self.events.append(message)
            if wanted(message):
                return message

    def open(self, path, width=1000, height=900):
        """Show a file in a window of a size in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        if not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def value(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def mouse(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        self.mouse(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def named(self, method):
        """The parameters of all events of a name."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self):
        """End the browser and what it started."""
        os.write(self.write_end, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)


def place(browser, selector):
    """Left, top, width and height of an element, scrolled to the middle of the window."""
    return browser.value(
        f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
        "node.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const box = node.getBoundingClientRect();"
        "return [box.left, box.top, box.width, box.height] })()"
    )
