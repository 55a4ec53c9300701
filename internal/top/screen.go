package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Screen shows what programs wait for in a terminal, until the user ends it or ctx ends. ask asks
// all daemons that there are, and returns within a few seconds; it is called by one goroutine at a
// time.
func Screen(ctx context.Context, c Choice, interval time.Duration, ask func() []Sample) error {
	m := &model{choice: c, interval: interval, ask: ask, rates: &Rates{}, height: 24}
	_, err := tea.NewProgram(m, tea.WithContext(ctx)).Run()
	if errors.Is(err, tea.ErrInterrupted) || ctx.Err() != nil {
		return nil
	}
	return err
}

// model is the state of the screen. It implements tea.Model.
type model struct {
	choice   Choice
	interval time.Duration
	ask      func() []Sample

	last         []Sample
	rates        *Rates
	at           time.Time // of the last sample; zero: there is none yet
	paused, help bool
	height       int
}

// sampled is the message that daemons have answered, and due that it is time to ask them.
type (
	sampled []Sample
	due     struct{}
)

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.sample }

func (m *model) sample() tea.Msg { return sampled(m.ask()) }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.height = msg.Height
	case sampled:
		if !m.paused {
			m.rates, m.last, m.at = Between(m.last, msg), msg, time.Now()
		}
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return due{} })
	case due:
		return m, m.sample
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

// key deals with a key.
func (m *model) key(key string) tea.Cmd {
	help := m.help
	m.help = false
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "h", "?":
		m.help = !help
	case "p", "space":
		m.paused = !m.paused
	case "s":
		m.choice.Order = Order(Orders[(slices.Index(Orders, string(m.choice.Order))+1)%len(Orders)])
	case "j":
		m.choice.Job = nextJob(m.choice.Job, m.rates.Jobs())
	case "n":
		if m.choice.Node++; m.choice.Node > m.rates.mostNode() {
			m.choice.Node = -1
		}
	}
	return nil
}

// nextJob is the job after one, of all that there are; nil, which is all of them, comes before the
// first and after the last.
func nextJob(job *Job, all []Job) *Job {
	at := 0
	if job != nil {
		at = slices.Index(all, *job) + 1 // 0 if it is gone
		if at == 0 {
			return nil
		}
	}
	if at == len(all) {
		return nil
	}
	return &all[at]
}

// View implements tea.Model.
func (m *model) View() tea.View {
	lines := []string{bold(m.status()), ""}
	bottom := []string{m.keys()}
	for _, s := range m.rates.Silent[:min(len(m.rates.Silent), 2)] {
		bottom = append([]string{"no answer: " + s}, bottom...)
	}
	notes := m.rates.notes(m.choice)
	bottom = append(notes[:min(len(notes), 2)], bottom...)
	room := max(m.height-len(lines)-len(bottom), 0)
	body := m.body(room)
	lines = append(lines, body[:min(len(body), room)]...)
	for len(lines) < m.height-len(bottom) {
		lines = append(lines, "")
	}
	v := tea.NewView(strings.Join(append(lines, bottom...), "\n"))
	v.AltScreen = true
	return v
}

const helpText = `TIME, PAGES, LOCKS, BARRIERS, REDUCTIONS and COMMITS are how long threads have
waited, and COMPUTING how long they had a processor, as parts of the time since
the last refresh; at first, since the beginning. Two threads that wait all the
time are 200%. A thread that polls while it waits counts twice. A lock that is
taken again where it was costs nothing and is not counted.

EACH is how long one wait takes; waits that are not over count until now. TAKEN/s
are pages that other nodes took while a program here wrote to them, without
synchronising in between: false sharing. READ, WRITE and UPGRADE are faults.
MEMORY is that of pages, and of the limit of the node (--memory).

  s  sort by the next of: waits, pages, locks, barriers, reductions, commits, computing, rank
  j  show the next job alone, and after the last all of them
  n  show the next node alone, and after the last all of them
  p  pause, and go on
  q  quit

Any key goes back.`

func (m *model) body(room int) []string {
	switch {
	case m.help:
		return strings.Split(helpText, "\n")
	case m.at.IsZero():
		return []string{"asking the daemons of this machine ..."}
	case len(m.rates.nodes) == 0:
		return []string{"no daemon of yours answers here; they are shown as soon as one does; who serves at", "a socket that is neither a job's nor the default one is named by --socket"}
	}
	return fit(m.rates.tables(m.choice), room)
}

// fit puts tables one below the other into so many lines. Those that are small are whole, and the
// others have the same part of what is left.
func fit(tables []table, room int) (lines []string) {
	const around = 2 // titles, and a line between
	tables = slices.DeleteFunc(tables, func(t table) bool { return len(t.rows) == 0 })
	order := slices.Clone(tables)
	slices.SortStableFunc(order, func(a, b table) int { return len(a.rows) - len(b.rows) })
	left, most := room+1, 0 // no line after the last
	for i, t := range order {
		if most = left/(len(order)-i) - around; len(t.rows) > most {
			break
		}
		left -= len(t.rows) + around
	}
	for _, t := range tables {
		if len(lines) > 0 {
			lines = append(lines, "")
		}
		text := t.lines(max(most, 1))
		lines = append(append(lines, bold(text[0])), text[1:]...)
	}
	return lines
}

// status is the first line.
func (m *model) status() string {
	job, node, state := "all jobs", "all nodes", fmt.Sprintf("%s, over %v", m.at.Format(time.TimeOnly), m.rates.Over.Round(100*time.Millisecond))
	if m.choice.Job != nil {
		job = "job " + m.choice.Job.String()
	}
	if m.choice.Node >= 0 {
		node = fmt.Sprint("node ", m.choice.Node)
	}
	if m.at.IsZero() {
		state = ""
	} else if m.paused {
		state += ", paused"
	}
	return fmt.Sprintf("dsmd top  %s  %s, %s  by %s", state, job, node, m.choice.Order)
}

// keys is the last line.
func (m *model) keys() string {
	if m.paused {
		return "q quit  p go on  s sort  j job  n node  h help"
	}
	return "q quit  p pause  s sort  j job  n node  h help"
}

func bold(text string) string { return "\x1b[1m" + text + "\x1b[0m" }
