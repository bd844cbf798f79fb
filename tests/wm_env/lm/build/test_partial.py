import numpy as np
import pytest

from wm_env.common.tensors import write_tensors
from wm_env.lm.build.partial import PART_FORMAT, clean_parts, read_parts, recorded_rows

LAW = {"rows": 8, "seed": 1}


@pytest.mark.parametrize("meta", [[], "x", None, LAW], ids=str)
def test_a_part_that_no_build_wrote_is_damaged(tmp_path, meta):
    part = tmp_path / "x.safetensors"
    write_tensors(part, PART_FORMAT, {"contexts": np.zeros((1, 2), dtype=np.int64)}, meta)
    assert recorded_rows(tmp_path, LAW) is None
    assert read_parts(tmp_path, LAW, {}) == {}
    clean_parts(tmp_path, LAW)
    assert not part.exists()
