import pytest
from matplotlib.image import imread

from wm_env.common.figures import new_figure, save_figure


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
