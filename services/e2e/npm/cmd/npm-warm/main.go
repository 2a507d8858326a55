// Command npm-warm installs every npm package that the tests need into the user's cache, so that the tests run without
// a network. It prints each set's directory and the duration of its install.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
)

func main() {
	if err := warm(); err != nil {
		fmt.Fprintln(os.Stderr, "npm-warm:", err)
		os.Exit(1)
	}
}

func warm() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cache, err := npm.Open()
	if err != nil {
		return err
	}
	for _, set := range npm.Sets() {
		start := time.Now()
		dir, err := cache.Install(ctx, set)
		if err != nil {
			return err
		}
		fmt.Printf("%-18s %6s  %s\n", set, time.Since(start).Round(time.Millisecond), dir)
	}
	return nil
}
