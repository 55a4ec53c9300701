package litmus

import (
	"fmt"
	"strings"
)

// Op is one access of a thread to a variable.
type Op struct {
	Store bool
	Var   int
	Value int // stored: 1 to maxValue. Variables begin with 0
}

// W stores value; R loads.
func W(variable, value int) Op { return Op{Store: true, Var: variable, Value: value} }

// R loads.
func R(variable int) Op { return Op{Var: variable} }

// Variables of the shapes.
const (
	x = iota
	y
	z
	w
)

const variableNames = "xyzw"

// Bounds of a shape, which make an Outcome fit into a word.
const (
	maxValue   = 3
	maxThreads = 4
	maxVars    = len(variableNames)
	maxLoads   = 8 // of one thread
	digit      = 4 // bits of an Outcome for each value
	strange    = 1<<digit - 1
)

// Shape is a litmus test: its threads' instructions. An outcome is what all loads returned, in the
// order of threads and instructions, and with Final then the last values of all variables.
type Shape struct {
	Name    string
	Threads [][]Op
	Final   bool
	// Classic is the outcome for which the test is known, which sequential consistency forbids.
	Classic string
}

// Outcome is the values of a run, digit bits each, the first lowest. The value strange stands for
// one that was never stored.
type Outcome uint64

func (o Outcome) with(i, value int) Outcome { return o | Outcome(value)<<(digit*i) }

func (o Outcome) at(i int) int { return int(o >> (digit * i) & strange) }

// vars is the number of variables.
func (s *Shape) vars() (n int) {
	for _, thread := range s.Threads {
		for _, op := range thread {
			n = max(n, op.Var+1)
		}
	}
	return n
}

// loads is the number of loads of a thread.
func (s *Shape) loads(thread int) int { return s.firstLoad(thread+1) - s.firstLoad(thread) }

// firstLoad is the place in the outcome of a thread's first load.
func (s *Shape) firstLoad(thread int) (n int) {
	for _, t := range s.Threads[:thread] {
		for _, op := range t {
			if !op.Store {
				n++
			}
		}
	}
	return n
}

// Describe writes an outcome as in the literature: "1:y=1 1:x=0 [x]=2".
func (s *Shape) Describe(o Outcome) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	value := func() string {
		v := o.at(len(parts))
		if v == strange {
			return "?"
		}
		return fmt.Sprint(v)
	}
	for t, thread := range s.Threads {
		for _, op := range thread {
			if !op.Store {
				add("%d:%c=%s", t, variableNames[op.Var], value())
			}
		}
	}
	if s.Final {
		for v := range s.vars() {
			add("[%c]=%s", variableNames[v], value())
		}
	}
	return strings.Join(parts, " ")
}

// Model is a memory model.
type Model string

// The models. SC: every access takes effect at once. TSO: stores wait in a buffer of their thread,
// in order, and the thread's own loads look there first (Owens, Sarkar, Sewell: "A better x86
// memory model: x86-TSO", 2009).
const (
	SC  Model = "SC"
	TSO Model = "TSO"
)

// machine is a state of the abstract machine on which a shape runs.
type machine struct {
	memory  [maxVars]int
	next    [maxThreads]int    // instruction
	buffer  [maxThreads]string // stores that wait: pairs of bytes, variable and value
	outcome Outcome
}

// Allowed enumerates the outcomes that a model allows.
func (s *Shape) Allowed(m Model) map[Outcome]bool {
	seen, allowed := map[machine]bool{}, map[Outcome]bool{}
	s.explore(m, machine{}, seen, allowed)
	return allowed
}

func (s *Shape) explore(m Model, now machine, seen map[machine]bool, allowed map[Outcome]bool) {
	if seen[now] {
		return
	}
	seen[now] = true
	over := true
	for t := range s.Threads {
		if now.next[t] < len(s.Threads[t]) {
			over = false
			s.explore(m, s.execute(m, now, t), seen, allowed)
		}
		if now.buffer[t] != "" {
			over = false
			s.explore(m, now.drain(t), seen, allowed)
		}
	}
	if over {
		allowed[s.conclude(now)] = true
	}
}

// execute runs the next instruction of thread t.
func (s *Shape) execute(m Model, now machine, t int) machine {
	done := now.next[t]
	op := s.Threads[t][done]
	now.next[t]++
	switch {
	case op.Store && m == TSO:
		now.buffer[t] += string([]byte{byte(op.Var), byte(op.Value)})
	case op.Store:
		now.memory[op.Var] = op.Value
	default:
		value := now.memory[op.Var]
		for b := now.buffer[t]; b != ""; b = b[2:] {
			if int(b[0]) == op.Var {
				value = int(b[1])
			}
		}
		place := s.firstLoad(t)
		for _, earlier := range s.Threads[t][:done] {
			if !earlier.Store {
				place++
			}
		}
		now.outcome = now.outcome.with(place, value)
	}
	return now
}

// drain lets the oldest waiting store of thread t take effect.
func (now machine) drain(t int) machine {
	b := now.buffer[t]
	now.memory[b[0]] = int(b[1])
	now.buffer[t] = b[2:]
	return now
}

func (s *Shape) conclude(now machine) Outcome {
	o := now.outcome
	if s.Final {
		loads := s.firstLoad(len(s.Threads))
		for v := range s.vars() {
			o = o.with(loads+v, now.memory[v])
		}
	}
	return o
}
