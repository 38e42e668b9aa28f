//! A picture of a run of `nemesis`: holders, leaders and faults on one time axis.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::event::{Event, Nanos, SECOND};
use crate::judge::{Hold, Violation, holds};
use crate::report::{Fault, faults};

const LEFT: f64 = 150.0;
const ROW: f64 = 22.0;
/// Colours of the clients in the picture.
const COLOURS: [&str; 8] =
    ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#dd8833"];
/// Names of locks and elections in the picture: the elections, and the locks that all clients use
/// often.
const NAMES: [&str; 5] = ["election-0", "election-1", "lock-0", "lock-1", "lock-2"];

struct Axis {
    start: Nanos,
    end: Nanos,
    scale: f64,
}

impl Axis {
    fn x(&self, at: Nanos) -> f64 {
        let seconds = (at.clamp(self.start, self.end) - self.start) as f64 / SECOND as f64;
        LEFT + seconds * self.scale
    }
}

pub(crate) fn draw(events: &[Event], found: &[Violation]) -> String {
    let (start, end) = (events.first().map_or(0, |e| e.at), events.last().map_or(1, |e| e.at));
    let seconds = (end - start) as f64 / SECOND as f64;
    let scale = (1_600.0 / seconds).clamp(8.0, 40.0);
    let axis = Axis { start, end, scale };
    let faults = faults(events);
    let lanes = lanes(&faults);
    let rows = NAMES.len() + lanes.iter().map(|(_, l)| l + 1).max().unwrap_or(0);
    let (width, height) = (LEFT + seconds * scale + 200.0, (rows + 4) as f64 * ROW);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    grid(&mut out, &axis, height);
    let holds = holds(events);
    for (row, name) in NAMES.iter().enumerate() {
        let y = (row + 1) as f64 * ROW;
        text(&mut out, 8.0, y + 14.0, name);
        for hold in holds.iter().filter(|h| &*h.name == *name && h.from < h.end) {
            bar(&mut out, &axis, y, hold);
        }
    }
    for (fault, lane) in &lanes {
        let y = (NAMES.len() + 1 + lane) as f64 * ROW + 6.0;
        strike(&mut out, &axis, y, fault);
    }
    for v in found {
        let x = axis.x(v.at);
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{height:.0}\" stroke=\"#f00\" \
             stroke-width=\"2\"><title>{}</title></line>",
            escape(&format!("{}: {}: {}", v.rule, v.name, v.text))
        );
    }
    legend(&mut out, height - ROW);
    out.push_str("</svg>\n");
    out
}

fn grid(out: &mut String, axis: &Axis, height: f64) {
    let mut at = axis.start;
    while at <= axis.end {
        let x = axis.x(at);
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"16\" x2=\"{x:.1}\" y2=\"{height:.0}\" stroke=\"#eee\"/>"
        );
        text(out, x - 8.0, 12.0, &format!("{} s", (at - axis.start) / SECOND));
        at += 10 * SECOND;
    }
}

fn bar(out: &mut String, axis: &Axis, y: f64, hold: &Hold) {
    let (from, to) = (axis.x(hold.from), axis.x(hold.end));
    let colour = COLOURS[usize::from(hold.who.client.max(1) - 1) % COLOURS.len()];
    let _ = writeln!(
        out,
        "<rect x=\"{from:.2}\" y=\"{y:.0}\" width=\"{:.2}\" height=\"16\" fill=\"{colour}\">\
         <title>client {} token {}</title></rect>",
        (to - from).max(0.2),
        hold.who.client,
        hold.token
    );
}

fn strike(out: &mut String, axis: &Axis, y: f64, fault: &Fault) {
    let (from, to) = (axis.x(fault.from), axis.x(fault.to));
    let _ = writeln!(
        out,
        "<rect x=\"{from:.1}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"16\" fill=\"#c33\" \
         fill-opacity=\"0.25\" stroke=\"#c33\"/>",
        (to - from).max(2.0)
    );
    let (kind, target) = (&fault.kind, &fault.target);
    // The target already names the client, for example "client 8". So the kind "freeze client"
    // becomes "freeze".
    let kind =
        if target.starts_with("client ") { kind.replace(" client", "") } else { kind.to_string() };
    text(out, from + 3.0, y + 12.0, &format!("{kind} {target}"));
}

fn legend(out: &mut String, y: f64) {
    for (n, colour) in COLOURS.iter().enumerate() {
        let x = LEFT + n as f64 * 80.0;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y:.0}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
        );
        text(out, x + 16.0, y + 10.0, &format!("client {}", n + 1));
    }
}

/// Assigns each fault to the first lane that has room for the fault and its label.
fn lanes(faults: &[Fault]) -> Vec<(&Fault, usize)> {
    let mut free: BTreeMap<usize, Nanos> = BTreeMap::new();
    let mut placed = Vec::new();
    for fault in faults {
        let lane =
            (0..faults.len()).find(|l| free.get(l).is_none_or(|at| *at < fault.from)).unwrap_or(0);
        // The label of a fault covers about 20 s of the time axis.
        free.insert(lane, fault.to.max(fault.from + 20 * SECOND));
        placed.push((fault, lane));
    }
    placed
}

fn text(out: &mut String, x: f64, y: f64, words: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(words));
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
