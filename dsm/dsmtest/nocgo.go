//go:build !cgo

package dsmtest

const cgo = false
