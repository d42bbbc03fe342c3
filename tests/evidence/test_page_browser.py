"""The HTML page in a browser that has no screen."""

import shutil
import subprocess
from pathlib import Path

import pytest

from jevify.evidence.page import page
from jevify.evidence.store import read_result

pytestmark = pytest.mark.manual

RUN = Path(__file__).parents[2] / "evidence" / "decide-cuda.json"


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_browser_draws_the_page_in_the_theme_asked_for(scheme: str, tmp_path: Path) -> None:
    from PIL import Image

    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no Chromium")
    (tmp_path / "page.html").write_text(page([read_result(RUN)]))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1060,1690"]
    shot = tmp_path / "page.png"
    theme = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    subprocess.run(
        [*command, theme, f"--screenshot={shot}", (tmp_path / "page.html").as_uri()], check=True, timeout=120
    )
    drawn = Image.open(shot).convert("L")
    corner = drawn.getpixel((2, 2))
    assert corner < 60 if scheme == "dark" else corner > 200
    # The plots are there: a page of background alone has few shades.
    assert len(drawn.crop((60, 300, 1000, 1600)).getcolors()) > 50
