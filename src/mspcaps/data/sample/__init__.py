"""The embedded sample: the first 500 training and 100 test images of each class of FashionMNIST, in file order.

tools/pack_sample.py makes the files beside this one.
"""
