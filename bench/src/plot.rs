//! A line chart as SVG: axes, a few series, a legend. Small enough to be read as text, and drawn for light and dark pages alike.

use std::fmt::Write as _;

/// A chart that is still to be drawn.
#[derive(Debug)]
pub struct Plot<'a> {
    /// The title.
    pub title: &'a str,
    /// The label of the x axis, which is logarithmic.
    pub x: &'a str,
    /// The label of the y axis.
    pub y: &'a str,
    /// Whether the y axis is logarithmic.
    pub log_y: bool,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Debug)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 430.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 80.0;
/// Distinguishable with color blindness.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

impl Plot<'_> {
    /// The whole file.
    pub fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#777\">\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>\n",
            escaped(self.title)
        );
        let points = || self.series.iter().flat_map(|series| &series.points);
        let across = Axis::over(points().map(|point| point.0), true, LEFT, WIDTH - RIGHT);
        let up = Axis::over(points().map(|point| point.1), self.log_y, HEIGHT - BOTTOM, TOP);
        self.draw_axes(&mut svg, &across, &up);
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let line: Vec<String> = series
                .points
                .iter()
                .map(|(x, y)| format!("{:.1},{:.1}", across.place(*x), up.place(*y)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                line.join(" ")
            );
            #[expect(clippy::cast_precision_loss, reason = "there are few series")]
            let x = LEFT + 10.0 + (number % 3) as f64 * 230.0;
            let y = HEIGHT - 24.0 + if number < 3 { 0.0 } else { 15.0 };
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">■ {}</text>",
                escaped(&series.name)
            );
        }
        svg + "</svg>\n"
    }

    fn draw_axes(&self, svg: &mut String, across: &Axis, up: &Axis) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for mark in across.marks() {
            let x = across.place(mark);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#8884\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 15.0,
                shown(mark)
            );
        }
        for mark in up.marks() {
            let y = up.place(mark);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#8884\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                shown(mark)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
            bottom + 30.0,
            escaped(self.x),
            TOP - 6.0,
            escaped(self.y)
        );
    }
}

/// Maps values to coordinates.
struct Axis {
    least: f64,
    most: f64,
    is_log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, is_log: bool, from: f64, to: f64) -> Self {
        let values: Vec<f64> =
            values.filter(|value| value.is_finite() && (!is_log || *value > 0.0)).collect();
        let most = values.iter().copied().fold(f64::MIN, f64::max);
        let least = if is_log { values.iter().copied().fold(f64::MAX, f64::min) } else { 0.0 };
        // An axis without values, or with one, is drawn, too.
        let (least, most) =
            if values.is_empty() { (1.0, 10.0) } else { (least, most.max(least * 1.01 + 1e-9)) };
        Self { least, most, is_log, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let part = if self.is_log {
            (value.max(self.least) / self.least).ln() / (self.most / self.least).ln()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        self.from + part * (self.to - self.from)
    }

    /// Round values within it: of a logarithm 1, 2 and 5 of each power of ten, else about five steps.
    fn marks(&self) -> Vec<f64> {
        if self.is_log {
            let powers = -6..=9;
            let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)));
            let mut marks: Vec<f64> =
                all.filter(|mark| *mark >= self.least * 0.999 && *mark <= self.most * 1.001).collect();
            if marks.len() > 10 {
                marks.retain(|mark| mark.log10().fract().abs() < 1e-9);
            }
            return marks;
        }
        let rough = (self.most - self.least) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        (0..=10).map(|number| f64::from(number) * step).filter(|mark| *mark <= self.most * 1.001).collect()
    }
}

fn shown(value: f64) -> String {
    match value {
        _ if value >= 1_000_000.0 => format!("{}M", value / 1_000_000.0),
        _ if value >= 10_000.0 => format!("{}k", value / 1000.0),
        _ if value >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_a_line_and_a_legend_entry() {
        let line = |name: &str| Series { name: name.to_owned(), points: vec![(1.0, 2.0), (10.0, 3.0)] };
        let plot = Plot {
            title: "a < b",
            x: "calls",
            y: "ms",
            log_y: false,
            series: vec![line("ours"), line("plain")],
        };
        let svg = plot.svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("■ ours") && svg.contains("a &lt; b"), "{svg}");
    }

    #[test]
    fn larger_values_are_drawn_higher_and_further_right() {
        let across = Axis::over([1.0, 100.0].into_iter(), true, 0.0, 200.0);
        assert!((across.place(10.0) - 100.0).abs() < 1e-6);
        let up = Axis::over([0.0, 5.0].into_iter(), false, 300.0, 0.0);
        assert!(up.place(5.0) < up.place(1.0));
    }
}
