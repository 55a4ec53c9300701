// Package sample has something for each operator.
package sample

import (
	"errors"
	"fmt"
)

type colour uint8

const (
	red colour = iota + 1
	green
)

var names = [...]string{red: "red", green: "green"}

func (c colour) String() string { return names[c%3] }

type pair struct{ a, b int }

var limit = 3

var errOdd = errors.New("odd")

func (p pair) half(_ int, _ bool) (int, error) {
	if p.a < 0 {
		panic(fmt.Sprintf("negative: %d", p.a+p.b))
	}
	if p.a%2 != 0 && p.b > 1 {
		return 0, fmt.Errorf("%w: %d", errOdd, p.a-1)
	} else {
		p.a /= 2
	}
	return p.a, nil
}

func choose(c colour, list ...int) pair {
	switch c {
	case red:
		return pair{a: sum(list...), b: one(3, true)}
	case green:
		return pair{a: minus(limit, len(list))}
	}
	return pair{}
}

func minus(a, b int) int { return a - b }

func one(int, bool) int { return 1 }

func sum[T int | uint8](list ...T) T {
	var s T
	for _, x := range list {
		s += x
	}
	return s
}

func classify(n int) int {
	if n < 1 {
		return 0
	}
	if n < 2 {
		return 0
	}
	if n < 3 {
		return 0
	}
	return 1
}

func count(to int) int {
	n := 0
	for n < to {
		n++
	}
	return n
}
