"""Forwards like those to come, before anyone waits for one."""

from array import array

from engine.core.ids import Rid, StepNo, pack_ids, pages_for
from engine.core.plan import PlanRow, StepPlan
from engine.core.sampling import GREEDY, Sampling
from engine.executor.batch import PoolGeometry, build_batch
from engine.executor.model_runner import ModelRunner
from engine.executor.sampling import choose_tokens

PROMPT_TOKENS_MAX = 32
"""Enough for every kernel of a prompt to run once; more would only delay the start."""
_ROW = 1
_DRAWN = Sampling(1.0, top_k=20, top_p=0.9, seed=1)


def run_first_forwards(runner: ModelRunner) -> None:
    """A prompt whose next token is drawn, then a greedy decode, over pools of their own. Raises what a forward does."""
    page_size, prompt_len = runner.pool.page_size, min(PROMPT_TOKENS_MAX, runner.config.context_len)
    num_pages = pages_for(prompt_len, page_size)
    scratch = runner.beside(PoolGeometry(page_size, num_pages + 1, _ROW + 1))
    table = array("i", range(1, num_pages + 1))
    # The decode computes the last token anew, so that it is within the context whatever that is.
    for step, start_len, query_len, sampling in ((1, 0, prompt_len, _DRAWN), (2, prompt_len - 1, 1, GREEDY)):
        ids = pack_ids([0] * query_len)
        row = PlanRow(Rid(0), 0, _ROW, start_len, query_len, ids, False, 1, table, sampling)
        batch = build_batch(StepPlan(StepNo(step), page_size, (row,)), scratch.pool)
        choose_tokens(scratch.forward(batch, batch.sample_idx), batch.draws)
