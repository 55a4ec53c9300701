package fabric

// A Registration is what it costs to register memory of some size and to end that again.
type Registration struct {
	Bytes      int     `json:"bytes"`
	Huge       bool    `json:"huge"` // of huge pages that the machine has reserved
	Samples    int     `json:"samples"`
	Register   float64 `json:"register_us"` // medians
	Deregister float64 `json:"deregister_us"`
}

// Registrations measures the costs for the device of this end, for ordinary pages, and for huge
// ones where there are some.
func (s *Session) Registrations(sizes []int) ([]Registration, error) {
	r, err := s.maker.open()
	if err != nil {
		return nil, err
	}
	var all []Registration
	err = onThread(coreOf(driving, false), func() (err error) {
		all, err = r.registrations(sizes)
		return err
	})
	return all, err
}
