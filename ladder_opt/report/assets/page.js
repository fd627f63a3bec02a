/* Draws the charts from the JSON beside them, in the colours of the reader's scheme; in print always light. */
(function () {
  "use strict";
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var print = window.matchMedia("print");
  var coarse = window.matchMedia("(pointer: coarse)");
  var templates = JSON.parse(document.getElementById("chart-templates").textContent);
  var PRINT_WIDTH = 660; /* pixels; an A4 or letter page within its margins */
  var printing = false;

  var charts = Array.prototype.map.call(document.querySelectorAll(".chart"), function (div) {
    var figure = JSON.parse(document.getElementById(div.id + "-data").textContent);
    return { div: div, data: figure.data, layout: figure.layout };
  });

  function scheme() {
    return dark.matches && !print.matches && !printing ? "dark" : "light";
  }

  function draw(chart) {
    var onPaper = print.matches || printing;
    var layout = Object.assign({}, chart.layout, { template: templates[scheme()] });
    layout.autosize = !onPaper;
    if (onPaper) { layout.width = PRINT_WIDTH; } else { delete layout.width; }
    /* On a touch screen a drag has to scroll the page, not the chart. */
    if (coarse.matches) { layout.dragmode = false; }
    return Plotly.react(chart.div, chart.data, layout, {
      responsive: true,
      displaylogo: false,
      displayModeBar: coarse.matches ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: { filename: chart.div.id, scale: 2 }
    });
  }

  function drawAll() { charts.forEach(draw); }

  function onPaper(starts) {
    if (starts === printing) { drawAll(); return; } /* browsers tell of printing in two ways */
    printing = starts;
    document.querySelectorAll("details").forEach(function (each) {
      if (starts) {
        each.dataset.wasOpen = each.open ? "yes" : "";
        each.open = true;
      } else if ("wasOpen" in each.dataset) {
        each.open = each.dataset.wasOpen === "yes";
      }
    });
    drawAll();
  }

  drawAll();
  dark.addEventListener("change", drawAll);
  print.addEventListener("change", function (event) { onPaper(event.matches); });
  window.addEventListener("beforeprint", function () { onPaper(true); });
  window.addEventListener("afterprint", function () { onPaper(false); });
})();
