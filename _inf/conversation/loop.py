"""The loop of a conversation: the model answers, then tools or a user reply, and so on.

The order of create, execute, calc_reward and release, the turn limits and `over_sample_rate` are
verl 0.6.1's (`workers/rollout/sglang_rollout/sglang_rollout.py`, `_async_rollout_a_request`).
Unlike verl, it never renders a prompt again, so the returned ids are those that were sampled, and
it keeps calls, log probs and finish reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from _inf.conversation.episode import Episode
from _inf.conversation.lifecycle import Lifecycle
from _inf.conversation.rules import ConversationBackend
from _inf.errors import ConfigError, EngineDeadError, EngineRefusal, RequestFailure
from _inf.types import Report, RequestOutput


async def run_episodes(
    episodes: Sequence[Episode], backend: ConversationBackend, report: Report | None
) -> list[RequestOutput]:
    """Run all episodes in parallel; abort the last share of them, `over_sample_rate`."""

    def progressed() -> None:
        if report is not None:
            report(sum(e.finished for e in episodes), sum(sum(e.mask) for e in episodes))

    rows = [asyncio.ensure_future(_row(episode, backend, progressed)) for episode in episodes]
    enough = int(len(rows) * (1 - episodes[0].rules.config.rollout.over_sample_rate))
    try:
        for finished, row in enumerate(asyncio.as_completed(rows), start=1):
            await row  # raises what ends the whole call
            if finished >= enough:
                break
    finally:
        for task in rows:
            task.cancel()
        await asyncio.gather(*rows, return_exceptions=True)
    for task, episode in zip(rows, episodes, strict=True):
        if task.cancelled():
            episode.abort("over_sample_rate")
    return [episode.output(backend.weight_version) for episode in episodes]


async def _row(
    episode: Episode, backend: ConversationBackend, progressed: Callable[[], None]
) -> None:
    """Run one conversation; a failure aborts this row only, unless no row can be answered."""
    lifecycle = Lifecycle(episode)
    try:
        await lifecycle.start()
        turn_rewards = await _turns(episode, backend, lifecycle, progressed)
        episode.conclude(await lifecycle.rewards() | {"user_turn_rewards": turn_rewards})
    except (ConfigError, EngineDeadError, EngineRefusal):
        raise
    except Exception as failure:
        episode.abort(None, f"{type(failure).__name__}: {failure}")
    finally:
        ending = asyncio.ensure_future(lifecycle.end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:  # the row is whole: its tools are released all the same
            await ending
    episode.finished = True
    progressed()


async def _turns(
    episode: Episode,
    backend: ConversationBackend,
    lifecycle: Lifecycle,
    progressed: Callable[[], None],
) -> list[float | None]:
    """Run turns until the conversation ends; return the rewards of the user's messages."""
    rewards: list[float | None] = []
    while not episode.over:
        request = episode.next_request()
        try:
            answer = await backend.turn(request)
        except RequestFailure as failure:
            raise RequestFailure(f"turn {len(episode.outputs) + 1}: {failure}") from failure
        episode.add_assistant_turn(answer)
        progressed()
        if episode.over:
            break
        if episode.to_run:
            calls = range(len(episode.to_run))
            episode.add_tool_results(await asyncio.gather(*map(episode.run, calls)))
        elif lifecycle.interaction is None or not episode.may_add_user_message(len(rewards)):
            break
        else:
            done, content, reward = await lifecycle.respond()
            rewards.append(reward)
            if done:
                episode.concluded = True
                break
            episode.add_user_message(content)
    return rewards
