// Command loud is a guest for tests. Its prompt must be one of these commands:
//
//	print TEXT   print a line on standard output
//	many N       print N lines on standard error
//	steps N      print a line of 1,000 bytes in each of N steps
//	panic TEXT   print a line, and panic
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-mesh/sluice/sdk/guest"
)

func init() {
	fmt.Println("started")
	guest.Serve(run)
}

func main() {}

func run(a *guest.Agent, prompt string) (string, error) {
	word, rest, _ := strings.Cut(prompt, " ")
	n, _ := strconv.Atoi(rest)
	switch word {
	case "print":
		fmt.Println(rest)
	case "many":
		for i := range n {
			fmt.Fprintln(os.Stderr, "line", i)
		}
	case "steps":
		for range n {
			fmt.Println(strings.Repeat("x", 999))
			if err := a.Emit("step"); err != nil {
				return "", err
			}
		}
	case "panic":
		fmt.Println("before the panic")
		panic(rest)
	}
	return "done", nil
}
