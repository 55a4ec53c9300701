package sim

import "dsmd/bench/chart"

// WriteTo writes the result into a folder, which is made if there is none: sim.json, sim.md, and plots as sim-NAME.png and .svg.
// Files of these names are replaced. Errors name the file.
func (r *Result) WriteTo(dir string) error {
	return chart.WriteFolder(dir, "sim", r, r.Markdown(), r.Drawings())
}
