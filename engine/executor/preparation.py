"""Forwards like those to come, before anyone waits for one."""

from array import array

from engine.core.ids import Rid, StepNo, pack_ids, pages_for
from engine.core.plan import PlanRow, StepPlan
from engine.core.sampling import GREEDY, Sampling
from engine.executor.batch import PoolGeometry, build_batch
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from engine.executor.sampling import choose_tokens

PROMPT_TOKENS_MAX = 32
"""Enough for every kernel of a prompt to run once; more would only delay the start."""
_ROW = 1
_STATE_SLOTS = 3
"""Padding, and one for each of the two steps."""
_STATE_SLOTS = 3
"""The padding slot, and one that each of the two steps writes."""
_DRAWN = Sampling(1.0, top_k=20, top_p=0.9, seed=1)


def run_first_forwards(runner: ModelRunner) -> None:
    """A prompt whose next token is drawn, then a greedy decode, over pools of their own. Raises what a forward does."""
    page_size, prompt_len = runner.pool.page_size, min(PROMPT_TOKENS_MAX, runner.config.context_len)
    num_pages = pages_for(prompt_len, page_size)
    scratch = runner.beside(_scratch_pools(runner.config, page_size, num_pages))
    for step, start_len, query_len, sampling in ((1, 0, prompt_len, _DRAWN), (2, prompt_len - 1, 1, GREEDY)):
        plan = _plan(runner.config, StepNo(step), page_size, num_pages, start_len, query_len, sampling)
        batch = build_batch(plan, scratch.pool)
        choose_tokens(scratch.forward(batch, batch.sample_idx), batch.draws)


def _scratch_pools(config: ModelConfig, page_size: int, num_pages: int) -> PoolGeometry:
    return PoolGeometry(
        page_size,
        num_pages + 1,
        _ROW + 1,
        swa_pages=num_pages + 1 if config.window is not None else 0,
        state_slots=_STATE_SLOTS if config.state_layers else 0,
    )


def _plan(
    config: ModelConfig,
    step: StepNo,
    page_size: int,
    num_pages: int,
    start_len: int,
    query_len: int,
    sampling: Sampling,
) -> StepPlan:
    """One row over all pages. The decode computes the last token anew, so that it is within the context whatever that
    is; the state that it starts from is that behind this token, for nobody looks at what comes of it."""
    table = array("i", range(1, num_pages + 1))
    has_states = bool(config.state_layers)
    row = PlanRow(
        rid=Rid(0),
        epoch=0,
        req_pool_idx=_ROW,
        start_len=start_len,
        query_len=query_len,
        input_ids=pack_ids([0] * query_len),
        uses_sampled=False,
        num_samples=1,
        page_table=table,
        sampling=sampling,
        swa_table=None if config.window is None else table,
        state_read=1 if has_states and start_len else 0,
        state_write=step if has_states else 0,
    )
    return StepPlan(step, page_size, (row,), window=config.window, has_states=has_states)
