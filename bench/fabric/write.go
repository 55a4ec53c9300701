package fabric

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"dsmd/bench/chart"
)

// Names in a folder of results.
const (
	resultName = "fabric.json"
	tableName  = "fabric.md"
	plotPrefix = "fabric-"
)

// WriteTo writes the result into a folder, which is made if there is none: fabric.json, fabric.md, and plots as fabric-NAME.png and
// .svg. Files of these names are replaced.
func (r Result) WriteTo(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("making the folder of the result: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	files := map[string][]byte{resultName: append(text, '\n'), tableName: []byte(r.Markdown())}
	for _, d := range r.drawings() {
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
