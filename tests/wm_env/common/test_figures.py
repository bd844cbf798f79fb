import warnings
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from wm_env.common.figures import figure_text, new_figure, save_figure


def drawn(title="a title"):
    figure, (axes,) = new_figure(title)
    axes.plot([0, 1], [0, 1], label="a line")
    return figure


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_name_decides_the_format_and_equal_figures_are_equal_files(tmp_path, ending, start):
    contents = []
    for number in (1, 2):
        path = tmp_path / "new" / f"{number}.{ending}"
        save_figure(drawn(), path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert contents[0].startswith(start)
    assert sorted(file.name for file in path.parent.iterdir()) == [f"1.{ending}", f"2.{ending}"]


def test_the_picture_is_not_empty(tmp_path):
    save_figure(drawn(), tmp_path / "a.PNG")
    image = imread(tmp_path / "a.PNG")
    assert image.shape[0] > 500
    assert image.std() > 0.01


@pytest.mark.parametrize("name", ["figure", "figure.jpg", "figure.png.tmp"])
def test_other_names_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"ends in \.png, \.pdf or \.svg"):
        save_figure(drawn(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_panels_stand_beside_each_other():
    figure, panels = new_figure("three", 3)
    assert figure.get_suptitle() == "three"
    assert len(panels) == len(figure.axes) == 3
    assert len({panel.get_subplotspec().colspan.start for panel in panels}) == 3


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_any_title_is_drawn_without_a_warning(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(drawn("水 \U0001f9eb $\\bad{$ a$b \x1b[2J \ud800"), path)
    if ending == "svg":
        ElementTree.parse(path)


def test_what_the_font_lacks_is_spelt_out():
    assert figure_text("läuf 水\n\x1b \U0001f9eb") == r"läuf \u6c34" + "\n" + r"\x1b \U0001f9eb"
    assert figure_text("$a$") == r"\$a\$"
