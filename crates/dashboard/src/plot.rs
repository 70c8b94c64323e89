//! Charts as SVG, drawn on the server, each with a title, a description for screen readers, and its numbers as a table.
//!
//! Owns their appearance. No information depends on color: every bar and row has a label. `overview` computes the numbers.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};
use render::text::sanitize;

/// Width of all charts: that of a phone, so that their text is readable there.
const WIDTH: f64 = 400.0;

/// A chart with its numbers.
#[derive(Debug, Default)]
pub(crate) struct Chart {
    /// Prefix of its element ids.
    pub id: &'static str,
    pub title: &'static str,
    /// Description with the main number.
    pub summary: String,
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// The drawing; none without data.
    pub drawing: Option<Drawing>,
}

/// SVG shapes with their total height.
#[derive(Debug)]
pub(crate) struct Drawing {
    pub height: f64,
    /// SVG elements, built only in this module from numbers and escaped text.
    shapes: String,
}

impl Chart {
    pub fn render(&self) -> Markup {
        html! {
            figure.plot aria-labelledby={ (self.id) "-title" } {
                h2 #{ (self.id) "-title" } { (self.title) }
                p.summary { (self.summary) }
                @match &self.drawing {
                    Some(drawing) => {
                        (PreEscaped(drawing.svg(self.id, self.title, &self.summary)))
                        details {
                            summary { "As a table" }
                            div.scroll tabindex="0" { (self.table()) }
                        }
                    }
                    None => { p.nothing { "Nothing to show yet." } }
                }
            }
        }
    }

    fn table(&self) -> Markup {
        html! {
            table {
                caption.unseen { (self.title) }
                thead { tr { @for head in &self.heads { th scope="col" { (head) } } } }
                tbody { @for row in &self.rows { tr {
                    @for (at, cell) in row.iter().enumerate() { @if at == 0 { th scope="row" { (cell) } } @else { td { (cell) } } }
                } } }
            }
        }
    }
}

impl Drawing {
    fn new(height: f64) -> Self {
        Self { height, shapes: String::new() }
    }

    fn svg(&self, id: &str, title: &str, summary: &str) -> String {
        format!(
            r#"<svg viewBox="0 0 {WIDTH} {:.0}" role="img" aria-labelledby="{id}-t {id}-d"><title id="{id}-t">{}</title><desc id="{id}-d">{}</desc>{}</svg>"#,
            self.height,
            escaped(title),
            escaped(summary),
            self.shapes
        )
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ =
            write!(self.shapes, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escaped(text));
    }

    fn rule(&mut self, x1: f64, x2: f64, y: f64, class: &str) {
        let _ = write!(
            self.shapes,
            r#"<line x1="{x1:.1}" x2="{x2:.1}" y1="{y:.1}" y2="{y:.1}" class="{class}"/>"#
        );
    }

    /// Adds a bar with a tooltip.
    fn bar(&mut self, [x, y, width, height]: [f64; 4], tooltip: &str) {
        let _ = write!(
            self.shapes,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="1.5" class="bar"><title>{}</title></rect>"#,
            escaped(tooltip)
        );
    }
}

/// Draws a row of small bars per name, all to one scale.
pub(crate) fn strips(days: &[String], rows: &[(String, Vec<u64>)]) -> Option<Drawing> {
    const ROW: f64 = 52.0;
    let most = rows.iter().flat_map(|(_, counts)| counts).copied().max().filter(|most| *most > 0)?;
    let mut drawing = Drawing::new(ROW * index(rows.len()) + 22.0);
    let step = WIDTH / index(days.len().max(1));
    for (number, (name, counts)) in rows.iter().enumerate() {
        let floor = ROW * index(number + 1) - 4.0;
        drawing.text(0.0, floor - 32.0, "name", name);
        drawing.text(WIDTH, floor - 32.0, "value end", &format!("{} total", counts.iter().sum::<u64>()));
        drawing.rule(0.0, WIDTH, floor, "axis");
        for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let height = (26.0 * float(*count) / float(most)).max(1.5);
            let tooltip = format!("{}: {count} by {name}", days[at]);
            drawing.bar([step * index(at) + step * 0.12, floor - height, step * 0.76, height], &tooltip);
        }
    }
    let below = ROW * index(rows.len()) + 12.0;
    date_labels(&mut drawing, days, below);
    Some(drawing)
}

/// Adds the first and the last day below a row.
fn date_labels(drawing: &mut Drawing, days: &[String], y: f64) {
    if let [first, .., last] = days {
        drawing.text(0.0, y, "label", first);
        drawing.text(WIDTH, y, "label end", last);
    }
}

/// Draws vertical bars with names below and numbers above.
pub(crate) fn columns(bars: &[(String, u64)]) -> Option<Drawing> {
    const FLOOR: f64 = 150.0;
    let most = bars.iter().map(|(_, count)| *count).max().filter(|most| *most > 0)?;
    let mut drawing = Drawing::new(FLOOR + 24.0);
    let step = WIDTH / index(bars.len());
    drawing.rule(0.0, WIDTH, FLOOR, "axis");
    for (at, (name, count)) in bars.iter().enumerate() {
        let (left, height) = (step * index(at), 124.0 * float(*count) / float(most));
        if *count > 0 {
            let height = height.max(1.5);
            drawing.bar([left + step * 0.1, FLOOR - height, step * 0.8, height], &format!("{name}: {count}"));
            drawing.text(left + step / 2.0, FLOOR - height - 5.0, "value middle", &count.to_string());
        }
        drawing.text(left + step / 2.0, FLOOR + 15.0, "label middle", name);
    }
    Some(drawing)
}

/// Draws horizontal bars, each with its name and number above.
pub(crate) fn ranks(bars: &[(String, f64, String)]) -> Option<Drawing> {
    const ROW: f64 = 36.0;
    let most = bars.iter().map(|(_, size, _)| *size).fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let mut drawing = Drawing::new(ROW * index(bars.len()) + 2.0);
    for (at, (name, size, value)) in bars.iter().enumerate() {
        let top = ROW * index(at);
        drawing.text(0.0, top + 13.0, "name", name);
        drawing.text(WIDTH, top + 13.0, "value end", value);
        drawing.rule(0.0, WIDTH, top + 24.0, "track");
        drawing.bar([0.0, top + 20.0, (WIDTH * size / most).max(2.0), 8.0], &format!("{name}: {value}"));
    }
    Some(drawing)
}

/// Draws a percentage per day as points on a line. The line is broken at days without a value.
pub(crate) fn shares(days: &[String], shares: &[Option<u64>]) -> Option<Drawing> {
    const TOP: f64 = 14.0;
    const FLOOR: f64 = 150.0;
    const LEFT: f64 = 34.0;
    shares.iter().flatten().next()?;
    let mut drawing = Drawing::new(FLOOR + 24.0);
    let height = |percent: u64| FLOOR - (FLOOR - TOP) * float(percent) / 100.0;
    for percent in [0, 50, 100] {
        drawing.rule(LEFT, WIDTH, height(percent), if percent == 0 { "axis" } else { "grid" });
        drawing.text(LEFT - 6.0, height(percent) + 4.0, "label end", &format!("{percent}%"));
    }
    let step = (WIDTH - LEFT) / index(shares.len().max(1));
    let x = |at: usize| LEFT + step * (index(at) + 0.5);
    for (at, pair) in shares.windows(2).enumerate() {
        if let [Some(one), Some(other)] = pair {
            let (x1, x2, y1, y2) = (x(at), x(at + 1), height(*one), height(*other));
            let _ = write!(
                drawing.shapes,
                r#"<line x1="{x1:.1}" x2="{x2:.1}" y1="{y1:.1}" y2="{y2:.1}" class="thread"/>"#
            );
        }
    }
    for (at, share) in shares.iter().enumerate() {
        let Some(percent) = share else { continue };
        let (cx, cy, tooltip) = (x(at), height(*percent), escaped(&format!("{}: {percent}%", days[at])));
        let _ = write!(
            drawing.shapes,
            r#"<circle cx="{cx:.1}" cy="{cy:.1}" r="3" class="dot"><title>{tooltip}</title></circle>"#
        );
    }
    if let [first, .., last] = days {
        drawing.text(LEFT, FLOOR + 17.0, "label", first);
        drawing.text(WIDTH, FLOOR + 17.0, "label end", last);
    }
    Some(drawing)
}

fn escaped(text: &str) -> String {
    html! { (sanitize(text)) }.into_string()
}

/// Converts an index to a coordinate.
fn index(number: usize) -> f64 {
    float(number as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a drawing needs no 16 digits")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(count: usize) -> Vec<String> {
        (1..=count).map(|day| format!("2026-01-{day:02}")).collect()
    }

    #[test]
    fn chart_without_data_is_not_drawn() {
        assert!(strips(&days(3), &[("claude".into(), vec![0, 0, 0])]).is_none());
        assert!(columns(&[]).is_none() && ranks(&[]).is_none());
        assert!(shares(&days(2), &[None, None]).is_none());
        let empty = Chart { id: "x", title: "X", ..Chart::default() }.render().into_string();
        assert!(empty.contains("Nothing to show yet") && !empty.contains("<svg"), "{empty}");
    }

    #[test]
    fn day_without_value_breaks_the_line() {
        let drawing = shares(&days(4), &[Some(100), Some(50), None, Some(0)]).unwrap();
        assert_eq!(drawing.shapes.matches("class=\"thread\"").count(), 1);
        assert_eq!(drawing.shapes.matches("<circle").count(), 3);
    }

    #[test]
    fn chart_is_accessible_and_escaped() {
        let bars = [("<script>".to_owned(), 2.0, "$2".to_owned())];
        let figure = Chart {
            id: "cost",
            title: "Cost",
            summary: "All of it".into(),
            heads: vec!["Model", "Cost"],
            rows: vec![vec!["<script>".into(), "$2".into()]],
            drawing: ranks(&bars),
        };
        let shown = figure.render().into_string();
        for part in [
            "role=\"img\"",
            "<title id=\"cost-t\">Cost</title>",
            "<desc id=\"cost-d\">",
            "<th scope=\"row\">&lt;script&gt;</th>",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(!shown.contains("<script"), "{shown}");
    }
}
