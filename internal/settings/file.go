package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a configuration file: a hundred times what naming every setting takes.
const maxFileBytes = 1 << 20

// entry is a value in a file, as a flag would have it.
type entry struct {
	value string
	where string // FILE:LINE
}

// parse reads a configuration file: one YAML mapping from names of settings to values, which are
// plain, or lists of plain ones. It reports all mistakes, each with its line.
func parse(name string, r io.Reader) (map[string]entry, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: reading %s: %w", ErrConfig, name, err)
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("%w: %s: the file has more than %d bytes", ErrConfig, name, maxFileBytes)
	}
	top, err := onlyDocument(name, text)
	if top == nil || err != nil {
		return nil, err
	}
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%w: %s:%d: the file is not a list of `name: value`", ErrConfig, name, top.Line)
	}
	entries := map[string]entry{}
	var problems []error
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		where := fmt.Sprintf("%s:%d", name, key.Line)
		text, err := plain(value)
		switch before, again := entries[key.Value]; {
		case lookup(key.Value) == nil:
			err = fmt.Errorf("there is no such setting%s (dsmd config check lists them)", nearest(key.Value))
		case again:
			err = fmt.Errorf("it is set twice, the first time at %s", before.where)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%w: %s: %s: %w", ErrConfig, where, key.Value, err))
			continue
		}
		entries[key.Value] = entry{text, where}
	}
	return entries, errors.Join(problems...)
}

// onlyDocument is what is in the one document of a file, nil if there is none but comments. A
// second one would be ignored, and with it what somebody has set.
func onlyDocument(name string, text []byte) (*yaml.Node, error) {
	documents := yaml.NewDecoder(bytes.NewReader(text))
	var first, second yaml.Node
	switch err := documents.Decode(&first); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, name, err)
	}
	switch err := documents.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("%w: %s:%d: a second document begins here (---), and a configuration has one: join them, or remove one", ErrConfig, name, second.Line)
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, name, err)
	}
	if len(first.Content) == 0 {
		return nil, nil
	}
	return first.Content[0], nil
}

// plain is a value as a flag would have it.
func plain(value *yaml.Node) (string, error) {
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		return "", errors.New("it has no value; leave the line out for the default")
	case value.Kind == yaml.ScalarNode:
		return value.Value, nil
	case value.Kind != yaml.SequenceNode:
		return "", errors.New("the value is neither plain nor a list")
	}
	var items []string
	for _, item := range value.Content {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" || strings.Contains(item.Value, ",") {
			return "", fmt.Errorf("line %d: an item of the list is not plain, or has a comma", item.Line)
		}
		items = append(items, item.Value)
	}
	return strings.Join(items, ","), nil
}
