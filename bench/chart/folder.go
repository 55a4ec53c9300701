package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFolder writes a result into a folder, which is made if there is none: the result itself as
// NAME.json, its text for people as NAME.md, and its drawings as NAME-DRAWING.png and .svg. Files
// of these names are replaced. Nothing is written if something cannot be encoded or drawn. Errors
// of writing name the file.
func WriteFolder(dir, name string, result any, markdown string, drawings []Drawing) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("making the folder of the result: %w", err)
	}
	text, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	files := map[string][]byte{name + ".json": append(text, '\n'), name + ".md": []byte(markdown)}
	for _, d := range drawings {
		for _, format := range Formats() {
			if files[name+"-"+d.Name+"."+format], err = d.Encode(format); err != nil {
				return err
			}
		}
	}
	for file, content := range files {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o666); err != nil {
			return fmt.Errorf("writing the result: %w", err)
		}
	}
	return nil
}
