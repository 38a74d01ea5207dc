//! Line plots as SVG images.

use std::fmt::{Display, Write};

/// A plot on a white canvas. Points are shares of its width and height, from the lower left corner.
pub struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    svg: String,
}

impl Plot {
    /// A plot from `left` to `right` and from `top` to `bottom` on a canvas of `size`, in pixels.
    pub fn new([width, height]: [f64; 2], [left, right]: [f64; 2], [top, bottom]: [f64; 2]) -> Plot {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        Plot { left, right, top, bottom, svg }
    }

    /// The pixel of a point.
    pub fn pixel(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (self.left + x * (self.right - self.left), self.bottom - y * (self.bottom - self.top))
    }

    /// Adds text at a pixel, with attributes such as `fill="red"`.
    pub fn text(&mut self, (x, y): (f64, f64), attributes: &str, text: impl Display) {
        let _ = writeln!(self.svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>");
    }

    /// Adds a horizontal line from a pixel.
    pub fn line(&mut self, (x, y): (f64, f64), length: f64, color: &str, width: f64) {
        let _ = writeln!(self.svg, "<path d=\"M{x} {y:.1}h{length}\" stroke=\"{color}\" stroke-width=\"{width}\"/>");
    }

    /// Adds a line across the plot, with its value.
    pub fn grid_line(&mut self, y: f64, value: impl Display) {
        let (left, y) = self.pixel((0.0, y));
        self.line((left, y), self.right - left, "#ddd", 1.0);
        self.text((left - 6.0, y + 4.0), "text-anchor=\"end\"", value);
    }

    /// Adds a value below the plot.
    pub fn mark(&mut self, x: f64, value: impl Display) {
        let (x, bottom) = self.pixel((x, 0.0));
        self.text((x, bottom + 18.0), "text-anchor=\"middle\"", value);
    }

    /// Adds a line through points.
    pub fn curve(&mut self, points: impl IntoIterator<Item = (f64, f64)>, color: &str) {
        let pixels = points.into_iter().map(|point| self.pixel(point));
        let pixels: Vec<String> = pixels.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.svg,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\" points=\"{}\"/>",
            pixels.join(" ")
        );
    }

    /// The image.
    pub fn finish(self) -> String {
        self.svg + "</svg>\n"
    }
}
