"""Look at every built page in Chromium, narrow and wide, light and dark.

``make screenshots`` builds the documentation, and writes one picture per page and view
to ``docs/_build/screenshots``. It prints what is wrong and fails on

- content that is wider than the window,
- pictures that do not load,
- links to pages or sections of the site that do not exist,
- errors in the console of the browser.

It needs Chromium and its driver, on Debian ``apt-get install chromium-driver``. By
itself, ``python docs/screenshots.py index.html`` looks at some of the built pages.
"""

import shutil
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from selenium import webdriver

BUILT = Path(__file__).parent / "_build"
SITE = BUILT / "html"
PICTURES = BUILT / "screenshots"
WIDTHS = (400, 1280)
THEMES = ("light", "dark")
HIGHEST = 12_000

# Elements that stick out of the window. Code, tables and equations have scroll bars.
WIDE = """
const width = document.documentElement.clientWidth, found = [];
const scrolls = "pre, .pst-scrollable-table-container, div.math, mjx-container";
const seen = (element) => element.checkVisibility({ visibilityProperty: true });
if (document.documentElement.scrollWidth > width + 1) found.push("the page");
for (const element of document.querySelectorAll("main *")) {
  const box = element.getBoundingClientRect();
  if (box.right > width + 1 && seen(element) && !element.closest(scrolls))
    found.push(`<${element.tagName.toLowerCase()}> ${element.textContent}`);
}
return found.slice(0, 5).map((text) => text.trim().slice(0, 80));
"""
BROKEN = """
return [...document.images].filter((one) => one.complete && one.naturalWidth === 0)
  .filter((one) => one.loading !== "lazy").map((one) => one.getAttribute("src"));
"""


class Page(HTMLParser):
    """The ids of a page, and what it links to."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        """Note the ids, links and sources of a tag."""
        attrs = dict(attrs)
        self.ids.update(attrs[key] for key in ("id", "name") if attrs.get(key))
        self.links += [attrs[key] for key in ("href", "src") if attrs.get(key)]


def dead_links(site):
    """Links inside the site that lead nowhere, as lines of text."""
    pages = {path.relative_to(site).as_posix(): Page(path) for path in html(site)}
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(urljoin(f"http://site/{name}", link))
            target = unquote(parts.path).lstrip("/")
            if parts.netloc != "site" or parts.scheme != "http":
                continue
            if not (site / target).is_file():
                yield f"{name}: dead link {link}"
            elif parts.fragment and target in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[target].ids:
                    yield f"{name}: no section {link}"


def html(site):
    """All pages of the site."""
    pages = sorted(site.rglob("*.html"))
    return [page for page in pages if "_static" not in page.relative_to(site).parts]


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that does not log requests."""

    def log_message(self, *args):
        """Log nothing."""


def serve(site):
    """Serve a folder on a free port of this machine; return the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def browser():
    """Chromium without a window, that keeps what is written to its console."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options, service)


def set_view(driver, width, height):
    """Set the size of the window, also below what a window may have."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {**metrics, "mobile": False}
    )


def look(driver, address, name, width, theme):
    """Take a picture of a page in one view; what is wrong, as lines of text."""
    set_view(driver, width, 900)
    driver.get(f"{address}/{name}")
    label = f"{name} at {width} px, {theme}"
    yield from (f"{label}: too wide: {one}" for one in driver.execute_script(WIDE))
    yield from (f"{label}: no picture {one}" for one in driver.execute_script(BROKEN))
    for entry in driver.get_log("browser"):
        if entry["level"] == "SEVERE":
            yield f"{label}: {entry['message']}"
    height = driver.execute_script("return document.documentElement.scrollHeight")
    set_view(driver, width, min(max(height, 900), HIGHEST))
    picture = PICTURES / f"{name.removesuffix('.html')}-{width}-{theme}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(picture))


def main(chosen):
    """Look at the chosen pages, or at all; the number of things that are wrong."""
    names = [path.relative_to(SITE).as_posix() for path in html(SITE)]
    # Of the pages of source code, links are checked and no pictures taken.
    names = [name for name in names if not name.startswith("_modules")]
    names = [name for name in names if not chosen or name in chosen]
    wrong = list(dead_links(SITE))
    address, driver = serve(SITE), browser()
    try:
        driver.get(f"{address}/index.html")
        for theme in THEMES:
            driver.execute_script(
                "localStorage.mode = localStorage.theme = arguments[0]", theme
            )
            for width in WIDTHS:
                for name in names:
                    wrong += look(driver, address, name, width, theme)
    finally:
        driver.quit()
    for line in wrong:
        print(line)
    print(f"{len(names)} pages, {len(wrong)} problems; pictures in {PICTURES}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
