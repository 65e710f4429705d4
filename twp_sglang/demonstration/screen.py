"""Shows a story: live in a terminal, as plain lines where there is none."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from twp_sglang.demonstration.story import Story
from twp_sglang.demonstration.view import render

_FRAMES_PER_S = 4
"""What the eye follows; every frame costs the machine that also serves the model."""

_LINE_EVERY_S = 3.0


class Screen:
    """Use as a context manager around a run; call :meth:`tick` often."""

    def __init__(self, console: Console, story: Story) -> None:
        self._console = console
        self._story = story
        self._begun = time.perf_counter()
        self._next_line_s = 0.0
        self._live = (
            Live(
                _Frame(story),
                console=console,
                refresh_per_second=_FRAMES_PER_S,
                vertical_overflow="crop",
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tick(last=True)
        if self._live is not None:
            self._live.stop()

    def tick(self, last: bool = False) -> None:
        """Advance the story's clock, and write a line where no frame is drawn."""
        self._story.now_s = time.perf_counter() - self._begun
        if self._live is None and (last or self._story.now_s >= self._next_line_s):
            self._next_line_s = self._story.now_s + _LINE_EVERY_S
            self._console.print(line(self._story), highlight=False, soft_wrap=True)


class _Frame:
    """Draws the story as it stands when rich asks."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield render(self._story, options.max_width, console.height)


def line(story: Story) -> str:
    """The story now, in one line."""
    parts = [
        f"{story.now_s:5.1f} s",
        f"{story.finished}/{story.planned} answered",
        f"{story.output_tokens} tokens",
    ]
    if story.points:
        last = story.points[-1]
        window = "–" if last.window_tokens is None else f"{last.window_tokens:.0f}"
        sigma = "–" if last.sigma is None else f"{last.sigma:.2f}"
        parts += [
            f"H {window}",
            f"K {last.load_tokens:.0f}",
            f"sigma {sigma}",
            f"queue {last.queue}",
            f"admitted {last.admitted}",
        ]
        gate = story.gate()
        if gate != "idle":
            parts.append(f"gate {gate}")
    if story.failed:
        parts.append(f"{story.failed} failed")
    return " · ".join(parts)
