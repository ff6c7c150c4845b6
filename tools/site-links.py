"""For the documentation's site: links to files outside of docs/ lead to the repository, where there is a site of it.

POWERCCL_REPOSITORY names the address of the files of this version, as https://HOST/OWNER/powerccl/blob/v0.1.0. Without
it the files' names are shown as text.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite the links of one page."""
    if page.file.abs_src_path is None:  # no file of docs/: nothing to lead away from
        return markdown
    folder = Path(page.file.abs_src_path).parent
    repository = os.environ.get("POWERCCL_REPOSITORY", "")

    def outside(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if re.match(r"\w+:", target):
            return found[0]
        file = (folder / target).resolve()
        if file.is_relative_to(ROOT / "docs") or not file.is_relative_to(ROOT):
            return found[0]
        name = file.relative_to(ROOT)
        if repository:
            return f"[{text}]({repository}/{name}{anchor})"
        return text if str(name) in text else f"{text} (`{name}`)"

    return LINK.sub(outside, markdown)
