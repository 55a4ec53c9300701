package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"dsmd/bench/chart"
)

// Names in a folder of results.
const (
	resultName = "sim.json"
	tableName  = "sim.md"
	plotPrefix = "sim-"
)

// WriteTo writes the result into a folder, which is made if there is none: sim.json, sim.md, and plots as sim-NAME.png and .svg.
// Files of these names are replaced. Errors name the file.
func (r *Result) WriteTo(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("making the folder of the result: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	files := map[string][]byte{resultName: append(text, '\n'), tableName: []byte(r.Markdown())}
	for _, d := range r.Drawings() {
		for _, format := range chart.Formats() {
			if files[plotPrefix+d.Name+"."+format], err = d.Encode(format); err != nil {
				return err
			}
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o666); err != nil {
			return fmt.Errorf("writing the result: %w", err)
		}
	}
	return nil
}
