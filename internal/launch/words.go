package launch

import "encoding/json"

// words are texts of the user's in an order: any bytes, as the kernel takes them. As JSON strings
// they would lose those that are not UTF-8, without an error (TestBytesReachThePrograms), so they
// are written as bytes are, in base64. Their type is that of the strings, so that a []string needs
// no conversion.
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
