//go:build cgo

package dsmtest

const cgo = true
