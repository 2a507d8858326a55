// Command guest is a guest for tests and benchmarks of the meter. Each of its functions does a different kind of work.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"sort"
	"strings"
)

func main() {}

// spin runs a loop of a few instructions.
//
//go:wasmexport spin
func spin(n uint32) uint32 {
	var a uint32
	for i := range n {
		a = a*31 ^ i
	}
	return a
}

// fib calls a small function recursively.
//
//go:wasmexport fib
func fib(n uint32) uint32 {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

type todo struct {
	Content string   `json:"content"`
	Status  string   `json:"status"`
	Tags    []string `json:"tags"`
	N       int      `json:"n"`
}

// codec encodes and decodes JSON.
//
//go:wasmexport codec
func codec(n uint32) uint32 {
	var size int
	for range n {
		text, _ := json.Marshal(map[string]any{"todos": []todo{{"write it", "pending", []string{"a", "b"}, 7}, {"read it", "completed", nil, 8}}, "more": strings.Repeat("lorem ", 20)})
		var back struct {
			Todos []todo
			More  string
		}
		if json.Unmarshal(text, &back) != nil {
			return 0
		}
		size += len(text) + len(back.Todos)
	}
	return uint32(size)
}

// hash computes SHA-256 hashes, which needs little memory.
//
//go:wasmexport hash
func hash(n uint32) uint32 {
	sum := sha256.Sum256(nil)
	for range n {
		sum = sha256.Sum256(sum[:])
	}
	return uint32(sum[0])
}

// order sorts numbers with a comparison function that is called indirectly.
//
//go:wasmexport order
func order(n uint32) uint32 {
	list := make([]uint32, 20_000)
	for range n {
		x := uint32(1)
		for i := range list {
			x = x*1664525 + 1013904223
			list[i] = x
		}
		sort.Slice(list, func(i, j int) bool { return list[i] < list[j] })
	}
	return list[0]
}

// text works with strings, maps and the garbage collector.
//
//go:wasmexport text
func text(n uint32) uint32 {
	words := 0
	for range n {
		count := map[string]int{}
		for _, w := range strings.Fields(strings.Repeat("the quick brown fox jumps over the lazy dog ", 50)) {
			count[strings.ToUpper(w)]++
		}
		words += len(count)
	}
	return uint32(words)
}

// matrix computes with floating-point numbers in nested loops.
//
//go:wasmexport matrix
func matrix(n uint32) uint32 {
	const size = 64
	var a, b, c [size][size]float64
	for i := range size {
		for j := range size {
			a[i][j], b[i][j] = float64(i+j), float64(i-j)
		}
	}
	for range n {
		for i := range size {
			for j := range size {
				var sum float64
				for k := range size {
					sum += a[i][k] * b[k][j]
				}
				c[i][j] = sum
			}
		}
	}
	return uint32(c[3][5])
}
