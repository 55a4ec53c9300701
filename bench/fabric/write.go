package fabric

import "dsmd/bench/chart"

// WriteTo writes the result into a folder, which is made if there is none: fabric.json, fabric.md, and plots as fabric-NAME.png and
// .svg. Files of these names are replaced.
func (r Result) WriteTo(dir string) error {
	return chart.WriteFolder(dir, "fabric", r, r.Markdown(), r.drawings())
}
