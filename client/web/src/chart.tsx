// A line chart of the last minutes, by uPlot.
import {useEffect, useRef} from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import {colour, useTheme} from "./theme";

export interface Line {
  name: string;
  values: (number | null)[];
}
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
const HEIGHT = 180;

export function Chart({label, times, lines, most, percent}: {
  label: string;
  times: number[]; // seconds since 1970
  lines: Line[];
  most?: number; // upper end of the axis at least
  percent?: boolean;
}) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = useTheme();
  const names = lines.map((line) => line.name).join("\n");

  useEffect(() => {
    const axis = {stroke: colour("--text"), grid: {stroke: colour("--line"), width: 1}, ticks: {stroke: colour("--line"), width: 1}};
    const shown = (value: number | null) => (value === null || value === undefined ? "–" : percent ? `${(100 * value).toFixed(1)} %` : value.toFixed(1));
    const made = new uPlot(
      {
        width: Math.max(200, place.current!.clientWidth),
        height: HEIGHT,
        cursor: {drag: {x: false, y: false}},
        scales: {x: {time: true}, y: {range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(most ?? 1, (high ?? 0) * 1.1)]}},
        axes: [axis, {...axis, size: 52, values: (_, ticks) => ticks.map((tick) => (percent ? `${Math.round(100 * tick)} %` : String(tick)))}],
        series: [
          {value: "{HH}:{mm}:{ss}"},
          ...lines.map((line, i) => ({label: line.name, stroke: colour(COLOURS[i % COLOURS.length]!), width: 2, points: {show: false}, value: (_: uPlot, v: number | null) => shown(v)})),
        ],
      },
      [times, ...lines.map((line) => line.values)] as uPlot.AlignedData,
      place.current!,
    );
    plot.current = made;
    const observer = new ResizeObserver(([entry]) => made.setSize({width: Math.max(200, Math.floor(entry!.contentRect.width)), height: HEIGHT}));
    observer.observe(place.current!);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [names, theme]);

  useEffect(() => plot.current?.setData([times, ...lines.map((line) => line.values)] as uPlot.AlignedData), [times]);
  return <div ref={place} class="chart" role="img" aria-label={label} />;
}
