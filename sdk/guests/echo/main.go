// Command echo is a guest that answers with its prompt.
package main

import "github.com/sluice-mesh/sluice/sdk/guest"

func init() {
	guest.Serve(func(_ *guest.Agent, prompt string) (string, error) { return prompt, nil })
}

func main() {}
