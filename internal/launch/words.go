package launch

import "encoding/json"

// word is a text of the user's in an order: any bytes, as the kernel takes them. As a JSON string
// it would lose those that are not UTF-8, without an error (TestBytesReachThePrograms), so it is
// written as bytes are, in base64.
type word string

// MarshalJSON implements json.Marshaler.
func (w word) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(w)) }

// UnmarshalJSON implements json.Unmarshaler.
func (w *word) UnmarshalJSON(text []byte) error {
	var b []byte
	err := json.Unmarshal(text, &b)
	*w = word(b)
	return err
}

// words are several of them. Their type is that of the strings, so that a []string needs no
// conversion.
type words []string

// MarshalJSON implements json.Marshaler.
func (w words) MarshalJSON() ([]byte, error) {
	list := make([][]byte, len(w))
	for i, s := range w {
		list[i] = []byte(s)
	}
	return json.Marshal(list)
}

// UnmarshalJSON implements json.Unmarshaler.
func (w *words) UnmarshalJSON(text []byte) error {
	var list [][]byte
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*w = make(words, len(list))
	for i, b := range list {
		(*w)[i] = string(b)
	}
	return nil
}
