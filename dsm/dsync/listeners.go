package dsync

// listeners are the goroutines of a rank that wait: those that were not signalled, and those that
// were and do not know it yet.
type listeners struct{ Waiting, Signalled int }

// listen lets those of this rank's goroutines go on that were signalled, whatever has happened
// since.
func listen[A any](m *monitor[A, listeners]) {
	m.ready = func() bool {
		is := m.own().Signalled > 0
		if is {
			m.own().Signalled--
		}
		return is
	}
	m.left = func(n int) { m.own().Waiting -= n }
}

// signal lets n goroutines of a rank go on, if so many wait there, inside.
func signal[A any](m *monitor[A, listeners], index, n int) bool {
	own := &m.places[index].own
	if own.Waiting == 0 {
		return false
	}
	own.Waiting -= n
	own.Signalled += n
	m.wake(index)
	return true
}

// signalAll lets all goroutines go on that wait, inside.
func signalAll[A any](m *monitor[A, listeners]) {
	for index := range m.places {
		signal(m, index, m.places[index].own.Waiting)
	}
}
