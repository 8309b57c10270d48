"""The numbers of a chart, as the page's script reads them."""

import json
import re
from html import unescape


def chart_data(markup):
    """The data of the only chart in a piece of markup."""
    (found,) = re.findall(r"data-chart='([^']*)'", markup)
    return json.loads(unescape(found))


def lines(markup):
    """Of a line chart, by name: x (its names, where it has some) and the value there; None for nan."""
    data = chart_data(markup)
    name = (lambda x: data["names"][x]) if data["names"] else (lambda x: x)
    return {one["name"]: dict(zip(map(name, one["x"]), one["y"], strict=True)) for one in data["series"]}
