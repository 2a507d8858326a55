package classify

// Version is the version of the classifier's results. Increase it whenever a result changes for any definition, because
// stored results of other versions are computed again. A test checks that Version was increased if the results for the
// labelled tools have changed.
const Version = 8
