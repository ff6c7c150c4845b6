  var drawing = {{ drawing | tojson }}, MOST = 2000, busy = false;
  function seconds(units) { return units * drawing.unit_s + drawing.offset_s; }
  function units(seconds) { return (seconds - drawing.offset_s) / drawing.unit_s; }
  // The part that is shown, in seconds; null: the whole run.
  var zoomed = drawing.steady ? drawing.steady.map(seconds) : null;
  function unpack(text, kind) {
    var bytes = Uint8Array.from(atob(text), function (c) { return c.charCodeAt(0); });
    var stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer().then(function (buffer) { return new kind(buffer); });
  }
  function summed(values) {
    var out = new Float64Array(values.length), sum = 0;
    for (var i = 0; i < values.length; i++) { sum += values[i]; out[i] = sum; }
    return out;
  }
  function at(values, value) {  // how many are below
    var low = 0, high = values.length;
    while (low < high) { var middle = (low + high) >> 1; if (values[middle] < value) low = middle + 1; else high = middle; }
    return low;
  }
  // Samples from a to b; of too many, each bin's first, least and greatest.
  function line(lane, series, scale, a, b) {
    var first = Math.max(0, at(lane.time, a) - 1), last = Math.min(lane.time.length, at(lane.time, b) + 1);
    var x = [], y = [], step = Math.max(1, Math.ceil((last - first) / MOST));
    for (var i = first; i < last; i += step) {
      var picks = [i], low = i, high = i;
      for (var j = i; j < Math.min(i + step, last); j++) {
        if (series[j] < series[low]) low = j;
        if (series[j] > series[high]) high = j;
      }
      if (step > 1) picks = [i, Math.min(low, high), Math.max(low, high)];
      picks.forEach(function (k) {
        x.push(seconds(lane.time[k])); y.push(series[k] ? series[k] * scale : null);
      });
    }
    return { x: x, y: y };
  }
  // Communication from a to b: as it was where that can be drawn, else its share of each bin.
  function shade(lane, a, b) {
    var first = at(lane.stop, a), last = at(lane.start, b), x = [], y = [];
    if (last - first <= MOST) {
      for (var i = first; i < last; i++) {
        var s = seconds(lane.start[i]), e = seconds(lane.stop[i]);
        x.push(s, s, e, e); y.push(0, 1, 1, 0);
      }
      return { x: x, y: y };
    }
    var bins = 600, width = (b - a) / bins, share = new Float64Array(bins);
    for (i = first; i < last; i++) {
      var from = Math.max(lane.start[i], a), to = Math.min(lane.stop[i], b);
      for (var bin = Math.floor((from - a) / width); bin < bins && a + bin * width < to; bin++) {
        share[bin] += Math.min(to, a + (bin + 1) * width) - Math.max(from, a + bin * width);
      }
    }
    for (bin = 0; bin < bins; bin++) {
      x.push(seconds(a + bin * width), seconds(a + (bin + 1) * width));
      y.push(share[bin] / width, share[bin] / width);
    }
    return { x: x, y: y };
  }
  function build(lane) {
    var a = zoomed ? Math.max(0, units(zoomed[0])) : 0;
    var b = zoomed ? Math.min(drawing.length, units(zoomed[1])) : drawing.length;
    var shaded = shade(lane, a, b), power = line(lane, lane.power, 0.1, a, b), clock = line(lane, lane.clock, 1, a, b);
    var plain = { zeroline: false, ticks: "", showline: false, gridwidth: 1, fixedrange: true };
    function behind(axis) {
      return { type: "scatter", mode: "lines", x: shaded.x, y: shaded.y, yaxis: axis, fill: "tozeroy", hoverinfo: "skip",
        line: { width: 0 }, fillcolor: "var:communication/0.22" };
    }
    function axis(more) { return Object.assign({}, plain, more); }
    figures[lane.id] = {
      config: { doubleClick: false },
      data: [
        behind("y3"), behind("y4"),
        { type: "scatter", mode: "lines", name: "power", x: power.x, y: power.y, yaxis: "y2",
          line: { color: "var:elsewhere", width: 1.5 }, hovertemplate: "%{y:.1f} W<extra></extra>" },
        { type: "scatter", mode: "lines", name: "SM clock", x: clock.x, y: clock.y,
          line: { color: "var:communication", width: 1.5, shape: "hv" }, hovertemplate: "%{y:.0f} MHz<extra></extra>" }
      ],
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x unified",
        font: { family: "system-ui, -apple-system, 'Segoe UI', sans-serif", size: 12 }, dragmode: "zoom",
        margin: { l: 60, r: 16, t: 6, b: 24 },
        xaxis: axis({ fixedrange: false, showgrid: false, anchor: "y2", ticksuffix: " s",
          range: [seconds(a), seconds(b)] }),
        yaxis: axis({ domain: [0.54, 1], range: [0, drawing.clock_top * 1.08], title: { text: "MHz" }, nticks: 4 }),
        yaxis2: axis({ domain: [0, 0.46], range: [0, drawing.power_top * 1.08], title: { text: "W" }, nticks: 4 }),
        yaxis3: axis({ range: [0, 1], overlaying: "y", visible: false }),
        yaxis4: axis({ range: [0, 1], overlaying: "y2", visible: false })
      }
    };
    return show(lane.id);
  }
  Promise.all([unpack(drawing.words, Uint32Array), unpack(drawing.halves, Uint16Array)]).then(function (parts) {
    var word = 0, half = 0;
    drawing.lanes.forEach(function (lane) {
      lane.time = summed(parts[0].subarray(word, word += lane.samples));
      var edges = summed(parts[0].subarray(word, word += 2 * lane.spans));
      lane.start = edges.filter(function (_, i) { return i % 2 === 0; });
      lane.stop = edges.filter(function (_, i) { return i % 2 === 1; });
      lane.power = parts[1].subarray(half, half += lane.samples);
      lane.clock = parts[1].subarray(half, half += lane.samples);
    });
    return Promise.all(drawing.lanes.map(build));
  }).then(function () {
    var button = document.getElementById("whole");
    function look(part) {
      zoomed = part;
      busy = true;
      if (button) {
        button.textContent = part ? "Show the whole run" : "Show the working time";
        document.getElementById("opened").textContent = part ? "Shown: a part of the run." : "Shown: the whole run.";
      }
      return Promise.all(drawing.lanes.map(build)).then(function () { busy = false; });
    }
    if (button) button.onclick = function () { look(zoomed ? null : drawing.steady.map(seconds)); };
    drawing.lanes.forEach(function (lane) {
      var chart = document.getElementById(lane.id);
      chart.on("plotly_relayout", function (change) {
        if (!busy && "xaxis.range[0]" in change) look([+change["xaxis.range[0]"], +change["xaxis.range[1]"]]);
      });
      chart.on("plotly_doubleclick", function () { look(null); });
    });
    document.documentElement.dataset.drawn = "all";
  });
